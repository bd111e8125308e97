package firstfit_test

import (
	"os"
	"testing"

	"karve.sh/karve/test/properties"
)

func TestMain(m *testing.M) { os.Exit(properties.Run(m)) }
