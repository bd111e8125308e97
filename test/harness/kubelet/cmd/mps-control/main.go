// Command mps-control is a fake nvidia-cuda-mps-control.
package main

import (
	"os"

	"karve.sh/karve/pkg/node/mps/mpstest"
)

func main() { os.Exit(mpstest.Main(os.Args[1:], os.Stdin, os.Stdout)) }
