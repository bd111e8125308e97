package aws

import (
	"bytes"
	"io"
	"net/http"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// ClientConfig returns the configuration of a test's SDK clients for the server at url. The clients do not retry, so that a test sees every error.
func ClientConfig(url string) awssdk.Config {
	return awssdk.Config{
		Region: "us-east-1", BaseEndpoint: &url, Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
		HTTPClient: &HTTPClient{}, Retryer: func() awssdk.Retryer { return awssdk.NopRetryer{} },
	}
}

// HTTPClient sends requests whose body belongs to net/http. The SDK closes a body as soon as it has the response headers. With a server this close, that
// can be before net/http has read the end of the body, and net/http then closes the connection before the response is read. The SDK's usual retries hide
// that, but a test that counts calls sees two.
type HTTPClient struct{ http.Client }

// Do sends a request. It returns the errors of the embedded client and of reading the body.
func (c *HTTPClient) Do(request *http.Request) (*http.Response, error) {
	own := request.Clone(request.Context())
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		own.Body = io.NopCloser(bytes.NewReader(body))
	}
	return c.Client.Do(own) //nolint:gosec // The request is as the SDK made it.
}
