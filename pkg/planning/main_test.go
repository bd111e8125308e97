package planning

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/internal/properties"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(properties.Run(m))
}
