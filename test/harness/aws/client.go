package aws

import (
	"bytes"
	"io"
	"net/http"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// ClientConfig is that of a test's SDK clients for a server at a URL. They do not call again for what was answered: a test wants to see it.
func ClientConfig(url string) awssdk.Config {
	return awssdk.Config{
		Region: "us-east-1", BaseEndpoint: &url, Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
		HTTPClient: &HTTPClient{}, Retryer: func() awssdk.Retryer { return awssdk.NopRetryer{} },
	}
}

// HTTPClient sends requests whose body is net/http's own. The SDK closes a body as soon as it has the answer's head, which on a server as near as this one
// can be before net/http has seen the body's end, and then net/http closes the connection below the answer. The SDK's usual retries mend that, and a test
// that counts calls sees two.
type HTTPClient struct{ http.Client }

// Do sends a request. Its errors are those of the embedded client, and of reading the body.
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
