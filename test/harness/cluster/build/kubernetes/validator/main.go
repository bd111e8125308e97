// Command validator does what the API server does with an object that a user creates: it decodes, defaults and validates the object with the server's own
// code. It reads objects from standard input, one JSON document each, and writes the object as the server stores it, or the server's error. It is a module of
// its own because the product does not depend on the API server.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// question is an object in the protobuf encoding that clients send. answer has the stored object in the same encoding, or the error.
type (
	question struct{ Object []byte }
	answer   struct {
		Object []byte
		Error  string
	}
)

func main() {
	klog.SetLogger(logr.Discard()) // The server logs details of its own validation.
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	for {
		var q question
		err := decoder.Decode(&q)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading an object: %w", err)
		}
		var a answer
		if a.Object, err = create(q.Object); err != nil {
			a.Error = err.Error()
		}
		if err := encoder.Encode(a); err != nil {
			return fmt.Errorf("writing an answer: %w", err)
		}
	}
}
