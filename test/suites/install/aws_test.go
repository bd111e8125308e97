package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/eks"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

const (
	account  = "222233334444"
	provider = "oidc.eks.eu-west-1.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF"
)

// call is one call of the aws command.
type call struct {
	// Action is the service and the operation, such as "iam create-role".
	Action string            `json:"action"`
	Flags  map[string]string `json:"flags"`
}

// answers are the outputs of the aws command by operation. The documents need no other operations.
var answers = map[string]string{
	"sts get-caller-identity":             account,
	"iam create-role":                     "{}",
	"iam put-role-policy":                 "",
	"iam list-open-id-connect-providers":  "arn:aws:iam::" + account + ":oidc-provider/" + provider,
	"eks describe-cluster":                "https://" + provider,
	"eks create-pod-identity-association": "{}",
	"eks list-pod-identity-associations":  "{}",
	"service-quotas get-service-quota":    "0.0",
	"ecr create-repository":               "{}",
	"ecr get-login-password":              "a-token",
}

// required are the flags of operations that are not checked with the SDK.
var required = map[string][]string{
	"service-quotas get-service-quota": {"quota-code", "service-code"},
	"ecr create-repository":            {"repository-name"},
	"ecr get-login-password":           {},
}

// actAsAWS plays the aws command: it validates the parameters with AWS's SDK, records the call and prints a fixed answer.
func actAsAWS(args []string, out io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	answer, known := answers[c.Action]
	if !known {
		return fmt.Errorf("nobody expected aws %s", c.Action)
	}
	parameters := map[string]string{}
	for name, value := range c.Flags {
		if !slices.Contains([]string{"query", "output", "region"}, name) {
			parameters[name] = value
		}
	}
	if want, ok := required[c.Action]; ok {
		for _, name := range want {
			if parameters[name] == "" {
				return fmt.Errorf("aws %s needs --%s", c.Action, name)
			}
		}
		if len(parameters) != len(want) {
			return fmt.Errorf("aws %s does not know all of %v", c.Action, parameters)
		}
	} else if err := validate(c.Action, parameters); err != nil {
		return fmt.Errorf("aws %s: %w", c.Action, err)
	}
	if err := note(c); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, answer)
	return err
}

// parse parses the arguments of a command. It replaces file:// with the content of the file.
func parse(args []string) (call, error) {
	if len(args) < 2 || len(args)%2 != 0 {
		return call{}, fmt.Errorf("aws %q is not a service, an operation and pairs of flags and values", args)
	}
	c := call{Action: args[0] + " " + args[1], Flags: map[string]string{}}
	for i := 2; i < len(args); i += 2 {
		name, ok := strings.CutPrefix(args[i], "--")
		if !ok {
			return call{}, fmt.Errorf("%q is not a flag", args[i])
		}
		value := args[i+1]
		if path, ok := strings.CutPrefix(value, "file://"); ok {
			text, err := os.ReadFile(path)
			if err != nil {
				return call{}, err
			}
			value = string(text)
		}
		c.Flags[name] = value
	}
	return c, nil
}

var errReachedAWS = errors.New("the request is complete")

type noAWS struct{}

func (noAWS) Do(*http.Request) (*http.Response, error) { return nil, errReachedAWS }

// validate passes the parameters to the SDK, which reports missing ones, and stops the request before it is sent.
func validate(action string, parameters map[string]string) error {
	service, operation, _ := strings.Cut(action, " ")
	config := aws.Config{Region: "eu-west-1", HTTPClient: noAWS{}, Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""), RetryMaxAttempts: 1}
	client := map[string]any{"iam": iam.NewFromConfig(config), "sts": sts.NewFromConfig(config), "eks": eks.NewFromConfig(config)}[service]
	if client == nil {
		return errors.New("the service is not known")
	}
	method, ok := methodOf(client, operation)
	if !ok {
		return errors.New("the operation is not known")
	}
	input := reflect.New(method.Type().In(1).Elem())
	for name, value := range parameters {
		field := input.Elem().FieldByNameFunc(func(f string) bool { return same(f, name) })
		if !field.IsValid() || field.Type() != reflect.TypeFor[*string]() {
			return fmt.Errorf("--%s is not known", name)
		}
		field.Set(reflect.ValueOf(&value))
		if !strings.HasSuffix(name, "policy-document") {
			continue
		}
		var policy struct {
			Version   string
			Statement []struct{ Effect string }
		}
		if err := json.Unmarshal([]byte(value), &policy); err != nil || policy.Version != "2012-10-17" || len(policy.Statement) == 0 {
			return fmt.Errorf("--%s is no policy: %w: %s", name, err, value)
		}
	}
	results := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
	err, _ := results[1].Interface().(error)
	if errors.Is(err, errReachedAWS) {
		return nil
	}
	return fmt.Errorf("the SDK refuses it: %w", err)
}

// methodOf returns the client's method for an operation as spelled in the command.
func methodOf(client any, operation string) (reflect.Value, bool) {
	v := reflect.ValueOf(client)
	for i := range v.NumMethod() {
		if same(v.Type().Method(i).Name, operation) {
			return v.Method(i), true
		}
	}
	return reflect.Value{}, false
}

// same reports whether a name of the SDK, such as CreateRole, matches a name of the command, such as create-role.
func same(sdk, command string) bool {
	return strings.EqualFold(sdk, strings.ReplaceAll(command, "-", ""))
}

func note(c call) error {
	f, err := os.OpenFile(os.Getenv("AWS_CALLS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(f).Encode(c), f.Close())
}
