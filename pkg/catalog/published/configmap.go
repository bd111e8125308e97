package published

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
)

// Name is the name of the ConfigMap, in the namespace of the controller.
const Name = "karve-catalog"

const (
	contentKey = "catalog.json.gz"
	timeKey    = "time"
	// controllerKey is the key of the controller's version.
	controllerKey = "controller"
	quotasKey     = "quotas.json"
	settingsKey   = "settings.json"
)

// Quotas are the quotas of the cloud's account.
type Quotas struct {
	Quotas []catalog.Quota `json:"quotas,omitempty"`
	// Problem is why they are unknown, or "" if they are known.
	Problem string `json:"problem,omitempty"`
}

// ConfigMap returns the ConfigMap that holds an encoded catalog, with the version and the settings of the controller. It contains no quotas if there are
// none.
func ConfigMap(namespace string, encoded []byte, quotas Quotas, controller string, settings Settings, now time.Time) *corev1.ConfigMap {
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Name},
		Data:       map[string]string{timeKey: now.UTC().Format(time.RFC3339), controllerKey: controller},
		BinaryData: map[string][]byte{contentKey: encoded},
	}
	if text, err := json.Marshal(quotas); err == nil && string(text) != "{}" {
		m.Data[quotasKey] = string(text)
	}
	if text, err := json.Marshal(settings); err == nil {
		m.Data[settingsKey] = string(text)
	}
	return m
}

// QuotasIn returns the quotas in a ConfigMap. It returns none if the ConfigMap has none or they cannot be read.
func QuotasIn(m *corev1.ConfigMap) Quotas {
	var q Quotas
	if err := json.Unmarshal([]byte(m.Data[quotasKey]), &q); err != nil {
		return Quotas{}
	}
	return q
}

// Same reports whether two ConfigMaps have the same content, regardless of when they were written.
func Same(a, b *corev1.ConfigMap) bool {
	return bytes.Equal(Encoded(a), Encoded(b)) && Controller(a) == Controller(b) &&
		a.Data[quotasKey] == b.Data[quotasKey] && a.Data[settingsKey] == b.Data[settingsKey]
}

// Encoded returns the encoded catalog in a ConfigMap.
func Encoded(m *corev1.ConfigMap) []byte { return m.BinaryData[contentKey] }

// Controller returns the version of the controller that wrote a ConfigMap, or "" if it is missing.
func Controller(m *corev1.ConfigMap) string { return m.Data[controllerKey] }

// Read returns the catalog in a ConfigMap, and when it was published. The error names the ConfigMap and the problem.
func Read(m *corev1.ConfigMap) (Catalog, time.Time, error) {
	c, at, err := readConfigMap(m)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("ConfigMap %s/%s cannot be read: %w", m.Namespace, m.Name, err)
	}
	return c, at, nil
}

func readConfigMap(m *corev1.ConfigMap) (Catalog, time.Time, error) {
	encoded := Encoded(m)
	if encoded == nil {
		return nil, time.Time{}, errors.New("it has no " + contentKey)
	}
	at, err := time.Parse(time.RFC3339, m.Data[timeKey])
	if err != nil {
		return nil, time.Time{}, err
	}
	c, err := Decode(encoded)
	return c, at, err
}

// InstanceTypes returns the instance types of a node class.
func (c Catalog) InstanceTypes(_ context.Context, class *unstructured.Unstructured) catalog.Listing {
	gvk := class.GroupVersionKind()
	listing, ok := c[v1alpha1.NodeClassReference{Group: gvk.Group, Kind: gvk.Kind, Name: class.GetName()}]
	if !ok {
		return catalog.Listing{Reason: "NotPublished", Message: fmt.Sprintf("the controller has not published the instance types of %s %q yet", gvk.Kind, class.GetName())}
	}
	return listing
}
