package scale

import (
	"bytes"
	"context"
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

// etcd writes objects as the API server stores them. A write through the API server takes 2 to 5 ms of CPU time, and the API server sees the objects through its
// own watches of etcd. The methods write at most batchSize objects.
type etcd struct{ url string }

// batchSize is the number of objects in one transaction. etcd limits a transaction to 128 operations and 1.5 MiB.
const batchSize = 100

// The parts of a transaction that are needed here, as etcd's JSON gateway reads them. Keys and values are base64.
type (
	transaction struct {
		Compare []compare   `json:"compare,omitempty"`
		Success []operation `json:"success"`
	}
	compare struct {
		Key            []byte `json:"key"`
		Target         string `json:"target"`
		Result         string `json:"result"`
		CreateRevision string `json:"createRevision"`
	}
	operation struct {
		RequestPut         *put         `json:"requestPut,omitempty"`
		RequestDeleteRange *deletion    `json:"requestDeleteRange,omitempty"`
		RequestTxn         *transaction `json:"requestTxn,omitempty"`
	}
	put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	deletion struct {
		Key []byte `json:"key"`
	}
)

// gateway keeps its connections open.
var gateway = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}

// put creates or overwrites objects. They must have all fields that the API server would add.
func (e etcd) put(ctx context.Context, objects []client.Object) error {
	return e.each(ctx, objects, func(o client.Object) (operation, error) {
		key, value, err := stored(o)
		return operation{RequestPut: &put{[]byte(key), value}}, err
	})
}

// create creates those of the objects that do not exist.
func (e etcd) create(ctx context.Context, objects []client.Object) error {
	return e.putIf(ctx, "EQUAL", objects)
}

// replace overwrites those of the objects that exist.
func (e etcd) replace(ctx context.Context, objects []client.Object) error {
	return e.putIf(ctx, "GREATER", objects)
}

// putIf creates or overwrites the objects whose revisions at creation compare with 0 as the result says. The revision of an object that does not exist is 0.
func (e etcd) putIf(ctx context.Context, result string, objects []client.Object) error {
	return e.each(ctx, objects, func(o client.Object) (operation, error) {
		key, value, err := stored(o)
		return operation{RequestTxn: &transaction{
			Compare: []compare{{Key: []byte(key), Target: "CREATE", Result: result, CreateRevision: "0"}},
			Success: []operation{{RequestPut: &put{[]byte(key), value}}},
		}}, err
	})
}

// remove removes objects, whatever their finalizers.
func (e etcd) remove(ctx context.Context, objects []client.Object) error {
	return e.each(ctx, objects, func(o client.Object) (operation, error) {
		key, err := keyOf(o)
		return operation{RequestDeleteRange: &deletion{[]byte(key)}}, err
	})
}

// each carries out an operation for each object, in one transaction.
func (e etcd) each(ctx context.Context, objects []client.Object, operationOn func(client.Object) (operation, error)) error {
	var txn transaction
	for _, o := range objects {
		op, err := operationOn(o)
		if err != nil {
			return err
		}
		txn.Success = append(txn.Success, op)
	}
	body, err := json.Marshal(txn)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := gateway.Do(req)
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

// keyOf returns the key of an object in etcd.
func keyOf(o client.Object) (string, error) {
	prefix := ""
	switch o.(type) {
	case *corev1.Pod:
		prefix = "pods/" + o.GetNamespace() + "/"
	case *corev1.Node:
		prefix = "minions/"
	case *corev1.Namespace:
		prefix = "namespaces/"
	case *coordinationv1.Lease:
		prefix = "leases/" + o.GetNamespace() + "/"
	case *storagev1.CSINode:
		prefix = "csinodes/"
	case *karpv1.NodeClaim:
		prefix = "karpenter.sh/nodeclaims/"
	default:
		return "", fmt.Errorf("no key is known for %T", o)
	}
	return "/registry/" + prefix + o.GetName(), nil
}

// stored returns the key and the value of an object in etcd. The value is protobuf for Kubernetes' own kinds and JSON for custom resources.
func stored(o client.Object) (key string, value []byte, err error) {
	if key, err = keyOf(o); err != nil {
		return "", nil, err
	}
	version := runtime.GroupVersioner(corev1.SchemeGroupVersion)
	switch o.(type) {
	case *coordinationv1.Lease:
		version = coordinationv1.SchemeGroupVersion
	case *storagev1.CSINode:
		version = storagev1.SchemeGroupVersion
	case *karpv1.NodeClaim:
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: karpapis.Group, Version: "v1", Kind: "NodeClaim"})
		value, err = json.Marshal(o)
		return key, value, err
	}
	value, err = runtime.Encode(scheme.Codecs.EncoderForVersion(stores, version), o)
	return key, value, err
}
