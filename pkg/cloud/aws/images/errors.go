package images

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/smithy-go"

	"karve.sh/karve/pkg/cloud/aws/api"
)

// Reason is why an image could not be read, as the reason of a condition.
type Reason string

// Reasons.
const (
	// NotFound means that there is no such image.
	NotFound Reason = "ImageNotFound"
	// Denied means that the controller has no AWS credentials, or that they lack a permission.
	Denied Reason = "AWSAccessDenied"
	// Throttled means that AWS throttled the call.
	Throttled Reason = "AWSThrottled"
	// Unreachable means that there was no answer, or none with a more specific reason.
	Unreachable Reason = "AWSUnreachable"
)

// Error is an error of AWS with a message for users.
type Error struct {
	Reason  Reason
	Message string
	err     error
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.err }

// explained returns an Error for err. what names what was read, and right is the IAM action that it needs.
func explained(err error, what, right string) error {
	e := &Error{Reason: Unreachable, Message: fmt.Sprintf("%s cannot be read, and is tried again: %v", what, err), err: err}
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
