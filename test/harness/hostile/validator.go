package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"

	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// Validator is the running program in test/harness/cluster/build/kubernetes/validator, which has the API server's own code. It is safe for concurrent use.
type Validator struct {
	// answersWithin is how long the program may validate an object. One that takes longer harms the API server, and Karve does not see it.
	answersWithin time.Duration
	path          string

	mu      sync.Mutex
	cmd     *exec.Cmd
	input   io.WriteCloser
	answers *json.Decoder
}

// question and answer are as in the program.
type (
	question struct{ Object []byte }
	answer   struct {
		Object []byte
		Error  string
	}
)

// buildValidator builds the program into _output/bin, below the repository's root, and returns its path. It shares its dependencies with the local cluster's
// kube-apiserver, so the build is fast once that has been built.
var buildValidator = sync.OnceValues(func() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "_output", "bin", "hostile-validator")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags", "-s -w", builder.KubernetesFlag, "-o", path, ".")
	cmd.Dir = filepath.Join(root, "test", "harness", "cluster", "build", "kubernetes", "validator")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the API server's validation: %w\n%s", err, out)
	}
	return path, nil
})

// NewValidator builds the program if needed. It rejects an object about which the program does not answer within a time. Close ends the program.
func NewValidator(answersWithin time.Duration) (*Validator, error) {
	path, err := buildValidator()
	return &Validator{answersWithin: answersWithin, path: path}, err
}

// Close ends the program.
func (v *Validator) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cmd == nil {
		return nil
	}
	err := errors.Join(v.input.Close(), v.cmd.Wait())
	v.cmd = nil
	return err
}

// Create returns an object as the API server stores it after a user has created it, with the status of the given object. It returns an error if the API
// server rejects the object.
func (v *Validator) Create(o client.Object) (client.Object, error) {
	if buffer, ok := o.(*autoscalingv1beta1.CapacityBuffer); ok {
		return createBuffer(buffer)
	}
	sent, err := Encode(o)
	if err != nil {
		return nil, err
	}
	a, err := v.ask(sent)
	if err != nil {
		return nil, err
	}
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	stored, err := Decode(a.Object)
	if err != nil {
		return nil, err
	}
	stored.SetUID(types.UID(fmt.Sprintf("%T %s", o, o.GetName())))
	stored.SetCreationTimestamp(o.GetCreationTimestamp())
	keepStatus(stored, o)
	return stored, nil
}

// protobufs encodes objects as clients send them. It can encode strings that are not valid UTF-8, which the API server accepts.
var protobufs = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// Encode returns the encoding of an object in which clients and the API server send it.
func Encode(o client.Object) ([]byte, error) {
	if buffer, ok := o.(*autoscalingv1beta1.CapacityBuffer); ok {
		sent := *buffer
		sent.SetGroupVersionKind(karpenter.CapacityBufferKind.WithVersion("v1beta1"))
		return json.Marshal(&sent)
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	sent, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object", o)
	}
	sent.GetObjectKind().SetGroupVersionKind(kinds[0])
	return runtime.Encode(protobufs, sent)
}

// Decode decodes what Encode has encoded, as the controller's informers do. CapacityBuffers, the only objects of a CRD, become unstructured objects.
func Decode(encoded []byte) (client.Object, error) {
	if encoded[0] == '{' {
		buffer := &unstructured.Unstructured{}
		return buffer, buffer.UnmarshalJSON(encoded)
	}
	decoded, _, err := protobufs.Decode(encoded, nil, nil)
	if err != nil {
		return nil, err
	}
	o, ok := decoded.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no object", decoded)
	}
	return o, nil
}

// ask sends an object to the program. It restarts the program if it does not answer.
func (v *Validator) ask(object []byte) (a answer, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cmd == nil {
		if err := v.start(); err != nil {
			return a, fmt.Errorf("starting the API server's validation: %w", err)
		}
	}
	slow := time.AfterFunc(v.answersWithin, func() { _ = v.cmd.Process.Kill() })
	defer slow.Stop()
	if err = json.NewEncoder(v.input).Encode(question{object}); err == nil {
		err = v.answers.Decode(&a)
	}
	if err != nil {
		_ = v.cmd.Wait() // It was killed, or it crashed and has said why.
		v.cmd = nil
		return a, fmt.Errorf("the API server does not answer: %w", err)
	}
	return a, nil
}

func (v *Validator) start() error {
	cmd := exec.CommandContext(context.Background(), v.path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	v.cmd, v.input, v.answers = cmd, in, json.NewDecoder(bufio.NewReader(out))
	return nil
}
