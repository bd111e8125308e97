package images

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/smithy-go"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws/api"
)

// Reasons of [cloud.ImageError].
const (
	// NotFound means that there is no such image.
	NotFound = "ImageNotFound"
	// Denied means that the controller has no AWS credentials, or that they lack a permission.
	Denied = "AWSAccessDenied"
	// Throttled means that AWS throttled the call.
	Throttled = "AWSThrottled"
	// Unreachable means that there was no answer, or none with a more specific reason.
	Unreachable = "AWSUnreachable"
)

// ErrorOf returns the ImageError in err. If there is none, it returns one with the reason Unreachable and the text of err.
func ErrorOf(err error) *cloud.ImageError {
	if known := (*cloud.ImageError)(nil); errors.As(err, &known) {
		return known
	}
	return &cloud.ImageError{Reason: Unreachable, Message: err.Error()}
}

// explained returns an ImageError for err. what names what was read, and right is the IAM action that it needs.
func explained(err error, what, right string) error {
	e := &cloud.ImageError{Reason: Unreachable, Message: fmt.Sprintf("%s cannot be read, and is tried again: %v", what, err), Err: err}
	if garbled := api.Garbled(err); garbled != "" {
		e.Message = fmt.Sprintf("%s cannot be read, and is tried again: AWS, or a proxy on the way to it, gives %s", what, garbled)
		return e
	}
	var api smithy.APIError
	if !errors.As(err, &api) {
		if strings.Contains(err.Error(), "get credentials") || strings.Contains(err.Error(), "retrieve credentials") {
			e.Reason = Denied
			e.Message = fmt.Sprintf("%s cannot be read without AWS credentials: give the controller's service account a role by EKS Pod Identity or IRSA: %v", what, err)
		}
		return e
	}
	switch code := api.ErrorCode(); {
	case code == "ParameterNotFound" || code == "ParameterVersionNotFound" || strings.HasPrefix(code, "InvalidAMIID"):
		e.Reason, e.Message = NotFound, fmt.Sprintf("%s cannot be found: %s", what, api.ErrorMessage())
	case strings.Contains(code, "Throttl") || code == "RequestLimitExceeded" || code == "TooManyRequestsException":
		e.Reason, e.Message = Throttled, fmt.Sprintf("AWS does not answer for %s at present, since it is asked too often; it is tried again", what)
	case strings.Contains(code, "AccessDenied") || code == "UnauthorizedOperation" || code == "AuthFailure" || strings.Contains(code, "Token"):
		e.Reason, e.Message = Denied, fmt.Sprintf("%s may not be read: allow the controller's role %s: %s", what, right, api.ErrorMessage())
	}
	return e
}
