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

// Counted has [Load] make clients that count their calls by service, action and code, each try of a call that is tried again for itself. The code is that of
// AWS's error, "OK" where there is none and "Unanswered" where no answer came.
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
