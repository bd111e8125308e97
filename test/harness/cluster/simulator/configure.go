package simulator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Configure replaces the rules in the cluster's ConfigMap. It returns an error for rules that a simulator would reject.
func Configure(ctx context.Context, client kubernetes.Interface, rules map[string]string) error {
	if _, err := ParseRules(&corev1.ConfigMap{Data: rules}); err != nil {
		return err
	}
	// An apply by the same manager removes the keys that it leaves out.
	cm := applycorev1.ConfigMap(ConfigMapName, ConfigMapNamespace).WithData(rules)
	_, err := client.CoreV1().ConfigMaps(ConfigMapNamespace).Apply(ctx, cm, metav1.ApplyOptions{FieldManager: "karve-simulator", Force: true})
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s: %w", ConfigMapName, err)
	}
	return nil
}
