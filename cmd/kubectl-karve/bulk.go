package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// perPage is the number of objects that are read at a time. A cluster has so many pods that all of them together would take gigabytes while they are decoded.
const perPage = 2000

// omitted are the fields that are left out of a protobuf message before it is decoded. A field with fields of its own is a message that is left out in part. Most
// of a pod is environment, mounts, probes and the status of its containers, and most of a node is the images that it has.
type omitted map[protowire.Number]omitted

// The numbers of the fields are those of generated.proto of each API group, where they never change.
var (
	metadata = omitted{17: nil} // managedFields
	// container omits image, command, args, workingDir, env, volumeMounts, probes, lifecycle, terminationMessage, imagePullPolicy, securityContext, stdin, tty, envFrom,
	// volumeDevices and resizePolicy.
	container = fieldsOf(2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
	// volume omits all sources but persistentVolumeClaim and ephemeral.
	volume = omitted{2: fieldsOf(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30)}
	// containerStatus keeps the name and the state.
	containerStatus = fieldsOf(3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	ofPods          = omitted{
		1: metadata,
		2: {1: volume, 2: container, 20: container, 34: nil},                                    // ephemeralContainers
		3: {5: nil, 6: nil, 8: containerStatus, 10: containerStatus, 12: nil, 13: nil, 16: nil}, // IP addresses, ephemeralContainerStatuses
	}
	ofNodes = omitted{1: metadata, 3: {8: nil}} // images
)

func fieldsOf(numbers ...protowire.Number) omitted {
	all := omitted{}
	for _, n := range numbers {
		all[n] = nil
	}
	return all
}

// from appends a message to a buffer, without what is omitted.
func (o omitted) from(to, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		field := message[:n]
		message = message[n:]
		inner, listed := o[number]
		switch {
		case !listed:
			to = append(to, field...)
		case inner != nil && kind == protowire.BytesType:
			_, _, tag := protowire.ConsumeTag(field)
			value, _ := protowire.ConsumeBytes(field[tag:])
			part, err := inner.from(make([]byte, 0, len(value)), value)
			if err != nil {
				return nil, err
			}
			to = protowire.AppendBytes(protowire.AppendTag(to, number, kind), part)
		}
	}
	return to, nil
}

// decoded is a kind of objects that are decoded from protobuf.
type decoded[T any] interface {
	*T
	Unmarshal(message []byte) error
}

// each calls a function with every object of a resource of Kubernetes itself, without the fields that are omitted. It skips those of which wanted returns false for
// the encoded object, if wanted is not nil. It decodes some objects while the next ones are read.
func each[T any, P decoded[T]](ctx context.Context, api rest.Interface, resource string, without omitted, wanted func(message []byte) bool, f func(P)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	batches, failed := make(chan *batch, inFlight), make(chan error, 1)
	go func() {
		defer close(batches)
		if err := readPages(ctx, api, resource, batches); err != nil {
			failed <- err
		}
	}()
	var buffer []byte
	for b := range batches {
		for _, message := range b.messages {
			if wanted != nil && !wanted(message) {
				continue
			}
			var err error
			if buffer, err = without.from(buffer[:0], message); err != nil {
				return fmt.Errorf("decoding %s: %w", resource, err)
			}
			object := P(new(T))
			if err := object.Unmarshal(buffer); err != nil { // It copies what it keeps.
				return fmt.Errorf("decoding %s: %w", resource, err)
			}
			f(object)
		}
		batchPool.Put(b)
	}
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

const (
	// batchBytes is the size of a batch of encoded objects, unless one is larger, and inFlight how many batches may wait to be decoded.
	batchBytes, inFlight = 256 << 10, 4
	// maxMessage is more than any object has: etcd stores at most 1.5 MiB.
	maxMessage = 16 << 20
)

// batch has encoded objects, in its memory. A large cluster has hundreds of megabytes of them, and to clear that much new memory takes longer than to decode what is
// needed, so batches are used again.
type batch struct {
	memory   []byte
	messages [][]byte
}

var batchPool = sync.Pool{New: func() any { return &batch{memory: make([]byte, 0, batchBytes)} }}

// emptyBatch returns a batch with room for a message.
func emptyBatch(size int) *batch {
	b, _ := batchPool.Get().(*batch)
	b.memory, b.messages = slices.Grow(b.memory[:0], size), b.messages[:0]
	return b
}

// readPages sends the encoded objects of a list.
func readPages(ctx context.Context, api rest.Interface, resource string, batches chan<- *batch) error {
	for next := ""; ; {
		page, err := api.Get().Resource(resource).VersionedParams(&metav1.ListOptions{Limit: perPage, Continue: next}, scheme.ParameterCodec).Stream(ctx)
		if err != nil { // It knows what the API server says of the error.
			return err
		}
		next, err = readPage(ctx, page, batches)
		_ = page.Close() // It was only read.
		if err != nil {
			return fmt.Errorf("decoding %s: %w", resource, err)
		}
		if next == "" {
			return nil
		}
	}
}

// protobufMagic begins all answers in protobuf.
const protobufMagic = "k8s\x00"

// readPage sends the encoded objects of a page. It returns the token of the next page, which is empty after the last one.
func readPage(ctx context.Context, page io.Reader, batches chan<- *batch) (next string, err error) {
	in := bufio.NewReaderSize(page, 64<<10)
	switch start, err := in.Peek(len(protobufMagic)); {
	case err != nil && !errors.Is(err, io.EOF):
		return "", err
	case string(start) != protobufMagic:
		return "", errors.New("the API server does not answer in protobuf")
	}
	_, _ = in.Discard(len(protobufMagic)) // They are in the buffer.
	const raw, listMeta, item = 2, 1, 2   // of runtime.Unknown, and of a list
	b := emptyBatch(0)
	envelope := fields{in: in, left: math.MaxInt64}
	for {
		number, size, err := envelope.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		if number != raw {
			if err := discard(in, size); err != nil {
				return "", err
			}
			continue
		}
		for list := (fields{in: in, left: size, nested: true}); ; {
			number, size, err := list.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return "", err
			}
			if len(b.memory)+int(size) > cap(b.memory) {
				if err := b.send(ctx, batches); err != nil {
					return "", err
				}
				b = emptyBatch(int(size))
			}
			message := b.memory[len(b.memory) : len(b.memory)+int(size)]
			if _, err := io.ReadFull(in, message); err != nil {
				return "", io.ErrUnexpectedEOF
			}
			switch number { //nolint:exhaustive // The other fields are dropped.
			case item:
				b.memory, b.messages = b.memory[:len(b.memory)+int(size)], append(b.messages, message)
			case listMeta:
				var m metav1.ListMeta
				if err := m.Unmarshal(message); err != nil {
					return "", err
				}
				next = m.Continue
			}
		}
	}
	return next, b.send(ctx, batches)
}

func (b *batch) send(ctx context.Context, batches chan<- *batch) error {
	select {
	case batches <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fields reads a message field by field.
type fields struct {
	in *bufio.Reader
	// left is how many bytes are left of the message. One that is not nested ends where the reader does.
	left   int64
	nested bool
}

// next returns the number and the size of the next field that is bytes. The caller must read them. At the end of the message it returns io.EOF.
func (r *fields) next() (number protowire.Number, size int64, err error) {
	for {
		before := r.left
		tag, err := binary.ReadUvarint(r)
		switch {
		case errors.Is(err, io.EOF) && before == r.left && (!r.nested || r.left == 0):
			return 0, 0, io.EOF
		case err != nil:
			return 0, 0, io.ErrUnexpectedEOF
		}
		number, kind := protowire.DecodeTag(tag)
		skip := int64(0)
		switch kind { //nolint:exhaustive // The API has no groups.
		case protowire.VarintType, protowire.BytesType:
			value, err := binary.ReadUvarint(r)
			if err != nil {
				return 0, 0, io.ErrUnexpectedEOF
			}
			if kind == protowire.VarintType {
				continue
			}
			if r.nested && (value > maxMessage || int64(value) > r.left) || value > math.MaxInt64/2 {
				return 0, 0, fmt.Errorf("field %d has %d bytes", number, value)
			}
			r.left -= int64(value)
			return number, int64(value), nil
		case protowire.Fixed32Type:
			skip = 4
		case protowire.Fixed64Type:
			skip = 8
		default:
			return 0, 0, fmt.Errorf("field %d is of type %d", number, kind)
		}
		if err := discard(r.in, skip); err != nil {
			return 0, 0, err
		}
		r.left -= skip
	}
}

// ReadByte reads a byte of the message.
func (r *fields) ReadByte() (byte, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	c, err := r.in.ReadByte()
	if err == nil {
		r.left--
	}
	return c, err
}

func discard(in *bufio.Reader, size int64) error {
	if _, err := io.CopyN(io.Discard, in, size); err != nil {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// bulk reads pods and nodes in pages, without what no command needs, and other kinds as its client does.
type bulk struct {
	client.Client
	api rest.Interface
}

// List lists objects. It supports no options for pods and nodes.
func (b bulk) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.PodList:
		if len(options) > 0 {
			return errors.New("only all pods can be listed")
		}
		return each(ctx, b.api, "pods", ofPods, nil, func(p *corev1.Pod) { l.Items = append(l.Items, *p) })
	case *corev1.NodeList:
		if len(options) > 0 {
			return errors.New("only all nodes can be listed")
		}
		return each(ctx, b.api, "nodes", ofNodes, nil, func(n *corev1.Node) { l.Items = append(l.Items, *n) })
	}
	return b.Client.List(ctx, list, options...)
}
