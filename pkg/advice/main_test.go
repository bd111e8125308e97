package advice_test

import (
	"os"
	"testing"

	"karve.sh/karve/pkg/internal/properties"
)

func TestMain(m *testing.M) { os.Exit(properties.Run(m)) }
