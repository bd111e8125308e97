package gather

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	_ "sigs.k8s.io/karpenter/pkg/apis/v1alpha1" // Registers NodeOverlays with client-go's scheme.

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Scheme returns client-go's own scheme, with all kinds that the controllers read and write. The kinds are added only once.
func Scheme() (*runtime.Scheme, error) { return scheme() }

var scheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		return nil, fmt.Errorf("registering kinds: %w", err)
	}
	return clientgoscheme.Scheme, nil
})
