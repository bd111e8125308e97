package instancetype

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/smithy-go"

	"karve.sh/karve/pkg/cloud/aws/api"
)

// failure is why something is unknown, with the reason and message of a condition.
type failure struct {
	reason, message string
}

// Reasons of outages, which may end at any moment.
const (
	reasonUnreachable = "Unreachable"
	reasonGarbled     = "Garbled"
)

// Codes of AWS errors, grouped by cause and remedy. The services use different codes for the same thing.
var (
	deniedCodes    = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}
	throttledCodes = []string{"RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException", "RequestThrottled", "SlowDown"}
	invalidCodes   = []string{
		"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidSignatureException",
		"ExpiredToken", "ExpiredTokenException", "RequestExpired", "OptInRequired",
	}
)

// diagnose returns why a call failed, with a message that says what to do about it.
func diagnose(ctx context.Context, clients *api.Clients, err error) *failure {
	action := "the call"
	if operation := (*smithy.OperationError)(nil); errors.As(err, &operation) {
		action = operation.Service() + " " + operation.Operation()
	}
	if what := api.Garbled(err); what != "" {
		return &failure{reasonGarbled, fmt.Sprintf("%s gets %s: see whether AWS has an outage, and what proxies are on the way to it (%v)", action, what, err)}
	}
	if api := smithy.APIError(nil); errors.As(err, &api) {
		code := api.ErrorCode()
		switch {
		case slices.Contains(deniedCodes, code):
			return &failure{"AccessDenied", fmt.Sprintf("%s is denied (%s): allow it in the IAM policy of Karve's role", action, code)}
		case slices.Contains(throttledCodes, code):
			return &failure{"Throttled", fmt.Sprintf("%s is throttled (%s): it is tried again, and what else in the account calls it may need a limit", action, code)}
		case slices.Contains(invalidCodes, code):
			return &failure{"InvalidCredentials", fmt.Sprintf("%s does not accept the credentials (%s): see Karve's role and that region %s is right", action, code, clients.Region)}
		default:
			return &failure{"Failed", fmt.Sprintf("%s answers %s: %s", action, code, api.ErrorMessage())}
		}
	}
	if credentials := clients.EC2.Options().Credentials; credentials != nil {
		if _, missing := credentials.Retrieve(ctx); missing != nil {
			return &failure{"NoCredentials", fmt.Sprintf("there are no AWS credentials: give Karve's service account a role by EKS Pod Identity or IRSA (%v)", missing)}
		}
	}
	return &failure{reasonUnreachable, fmt.Sprintf("%s gets no answer in region %s: see the network and that AWS_REGION is right (%v)", action, clients.Region, err)}
}
