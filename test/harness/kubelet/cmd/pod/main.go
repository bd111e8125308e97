// Command pod is the only program in the image of the tests. It prints its environment as JSON and runs until it gets a signal.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	environment := map[string]string{}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		environment[name] = value
	}
	if err := json.NewEncoder(os.Stdout).Encode(environment); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-stop
}
