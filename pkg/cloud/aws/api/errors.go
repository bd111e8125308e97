package api

import (
	"errors"
	"fmt"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
)

// Garbled describes a response that did not come from AWS, such as the error page of a proxy. It returns "" if err is an error from AWS, or if there
// was no response.
func Garbled(err error) string {
	status := ""
	if response := (*awshttp.ResponseError)(nil); errors.As(err, &response) && response.HTTPStatusCode() > 0 {
		status = fmt.Sprintf(" with HTTP status %d", response.HTTPStatusCode())
	}
	if api := smithy.APIError(nil); errors.As(err, &api) {
		if code := api.ErrorCode(); code != "UnknownError" && code != "" {
			return ""
		}
		return "an answer" + status + " that is no error of AWS"
	}
	if decoding := (*smithy.DeserializationError)(nil); errors.As(err, &decoding) {
		return "an answer" + status + " that cannot be decoded"
	}
	return ""
}
