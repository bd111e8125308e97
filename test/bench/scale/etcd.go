package scale

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// etcd writes objects as the API server stores them. A write through the API server takes milliseconds of CPU time. The API server sees the objects through
// its own watches of etcd.
type etcd struct{ url string }

// batchSize is the number of objects in one transaction. etcd limits a transaction to 128 operations and 1.5 MiB.
const batchSize = 100

// put writes objects in one transaction. They must have all fields that the API server would add.
func (e etcd) put(ctx context.Context, objects []client.Object) error {
	type put struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type operation struct {
		RequestPut put `json:"requestPut"`
	}
	var txn struct {
		Success []operation `json:"success"`
	}
	for _, o := range objects {
		key, value, err := stored(o)
		if err != nil {
			return err
		}
		txn.Success = append(txn.Success, operation{put{base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString(value)}})
	}
	body, err := json.Marshal(txn)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // It was only read.
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("writing to etcd: %s: %s", res.Status, answer)
	}
	return nil
}

var stores = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// stored returns the key and the value of an object in etcd. The value is protobuf for Kubernetes' own kinds and JSON for custom resources.
func stored(o client.Object) (key string, value []byte, err error) {
	version := runtime.GroupVersioner(corev1.SchemeGroupVersion)
	switch o.(type) {
	case *corev1.Pod:
		key = "pods/" + o.GetNamespace() + "/"
	case *corev1.Node:
		key = "minions/"
	case *corev1.Namespace:
		key = "namespaces/"
	case *coordinationv1.Lease:
		key, version = "leases/"+o.GetNamespace()+"/", coordinationv1.SchemeGroupVersion
	case *storagev1.CSINode:
		key, version = "csinodes/", storagev1.SchemeGroupVersion
	case *karpv1.NodeClaim:
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: karpapis.Group, Version: "v1", Kind: "NodeClaim"})
		value, err = json.Marshal(o)
		return "/registry/karpenter.sh/nodeclaims/" + o.GetName(), value, err
	default:
		return "", nil, fmt.Errorf("no key is known for %T", o)
	}
	value, err = runtime.Encode(scheme.Codecs.EncoderForVersion(stores, version), o)
	return "/registry/" + key + o.GetName(), value, err
}
