package api

import (
	"context"
	"errors"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"github.com/prometheus/client_golang/prometheus"
)

// Counted is an option for [Load] that counts the calls of the clients by service, action and code. It also counts each retry. The code is AWS's error
// code, "OK" if there was no error, and "Unanswered" if there was no answer.
func Counted(calls *prometheus.CounterVec) func(*config.LoadOptions) error {
	count := middleware.DeserializeMiddlewareFunc("CountCalls", func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
	) (middleware.DeserializeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleDeserialize(ctx, in)
		code := "OK"
		if api := smithy.APIError(nil); errors.As(err, &api) {
			code = api.ErrorCode()
		} else if err != nil {
			code = "Unanswered"
		}
		calls.WithLabelValues(awsmiddleware.GetServiceID(ctx), awsmiddleware.GetOperationName(ctx), code).Inc()
		return out, metadata, err
	})
	return config.WithAPIOptions([]func(*middleware.Stack) error{func(s *middleware.Stack) error {
		return s.Deserialize.Add(count, middleware.Before)
	}})
}
