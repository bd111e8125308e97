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

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// omitted are the fields that are left out of a protobuf message before it is decoded. An entry with fields of its own is a message that is left out in
// part. Most of a node is its list of images.
type omitted map[protowire.Number]omitted

// The field numbers are those in generated.proto of each API group, where they never change.
var (
	metadata = omitted{17: nil}                  // managedFields
	ofNodes  = omitted{1: metadata, 3: {8: nil}} // images
)

func fieldsOf(numbers ...protowire.Number) omitted {
	all := omitted{}
	for _, n := range numbers {
		all[n] = nil
	}
	return all
}

// from appends a message to a buffer, without the omitted fields.
func (o omitted) from(to, message []byte) ([]byte, error) {
	err := eachField(message, func(number protowire.Number, field, value []byte) (err error) {
		inner, listed := o[number]
		switch {
		case !listed:
			to = append(to, field...)
		case inner != nil && value != nil:
			to = protowire.AppendTag(to, number, protowire.BytesType)
			at := len(to)
			if to, err = inner.from(to, value); err == nil {
				to = withSize(to, at)
			}
		}
		return err
	})
	return to, err
}

// withSize inserts the size of the message that begins at a position before it.
func withSize(b []byte, at int) []byte {
	size := len(b) - at
	b = append(b, make([]byte, protowire.SizeVarint(uint64(size)))...)
	copy(b[len(b)-size:], b[at:])
	_ = protowire.AppendVarint(b[:at], uint64(size)) // It has room there.
	return b
}

// eachField calls f with the number and the bytes of each field of a message. The value is nil if the field is a number.
func eachField(message []byte, f func(number protowire.Number, field, value []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		field, value := message[:n], []byte(nil)
		message = message[n:]
		if kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(field)
			value, _ = protowire.ConsumeBytes(field[tag:])
		}
		if err := f(number, field, value); err != nil {
			return err
		}
	}
	return nil
}

// selection has the selectors of a list. If they are empty, it lists everything.
type selection struct{ fields, labels string }

// each calls f with every encoded object of a built-in Kubernetes resource that one of the selections matches, while more are being read. f must copy
// what it keeps.
func each(ctx context.Context, api rest.Interface, resource string, selections []selection, f func(message []byte) error) error {
	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan *batch, inFlight)
	group.Go(func() error {
		defer close(batches)
		lists, ctx := errgroup.WithContext(ctx)
		lists.SetLimit(requests)
		for _, s := range selections {
			lists.Go(func() error { return readList(ctx, api, resource, s, batches) })
		}
		return lists.Wait()
	})
	group.Go(func() error {
		for b := range batches {
			for _, message := range b.messages {
				if err := f(message); err != nil {
					return fmt.Errorf("decoding %s: %w", resource, err)
				}
			}
			batchPool.Put(b)
		}
		return nil
	})
	return group.Wait()
}

const (
	// requests is the number of lists of a resource that are requested concurrently.
	requests = 16
	// batchBytes is the size of a batch of encoded objects, unless one object is larger. inFlight is the number of batches that may wait to be decoded.
	batchBytes, inFlight = 256 << 10, 4
	// maxMessage is more than any object has: etcd stores at most 1.5 MiB.
	maxMessage = 16 << 20
)

// batch has encoded objects and their memory. A large cluster has hundreds of megabytes of them, and clearing that much new memory takes longer than
// decoding the needed parts, so batches are reused.
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

// readList sends the encoded objects that a selection matches.
func readList(ctx context.Context, api rest.Interface, resource string, s selection, batches chan<- *batch) error {
	// Version 0 is the state in the API server's memory, as for informers. The API server does not have to ask etcd first, and sends all objects while it
	// encodes them.
	options := metav1.ListOptions{ResourceVersion: "0", FieldSelector: s.fields, LabelSelector: s.labels}
	answer, err := api.Get().Resource(resource).VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
	if err != nil { // It contains the API server's error message.
		return err
	}
	defer func() { _ = answer.Close() }() // It was only read.
	if err := readObjects(ctx, answer, batches); err != nil {
		return fmt.Errorf("decoding %s: %w", resource, err)
	}
	return nil
}

// protobufMagic is the prefix of all protobuf responses.
const protobufMagic = "k8s\x00"

// readObjects sends the encoded objects of an encoded list.
func readObjects(ctx context.Context, answer io.Reader, batches chan<- *batch) error {
	in := bufio.NewReaderSize(answer, 64<<10)
	switch start, err := in.Peek(len(protobufMagic)); {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case string(start) != protobufMagic:
		return errors.New("the API server does not answer in protobuf")
	}
	_, _ = in.Discard(len(protobufMagic)) // They are in the buffer.
	const raw, item = 2, 2                // of runtime.Unknown, and of a list
	b := emptyBatch(0)
	envelope := fields{in: in, left: math.MaxInt64}
	for {
		number, size, err := envelope.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if number != raw {
			if err := discard(in, size); err != nil {
				return err
			}
			continue
		}
		for list := (fields{in: in, left: size, nested: true}); ; {
			number, size, err := list.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			if number != item {
				if err := discard(in, size); err != nil {
					return err
				}
				continue
			}
			if len(b.memory)+int(size) > cap(b.memory) {
				if err := b.send(ctx, batches); err != nil {
					return err
				}
				b = emptyBatch(int(size))
			}
			message := b.memory[len(b.memory) : len(b.memory)+int(size)]
			if _, err := io.ReadFull(in, message); err != nil {
				return io.ErrUnexpectedEOF
			}
			b.memory, b.messages = b.memory[:len(b.memory)+int(size)], append(b.messages, message)
		}
	}
	return b.send(ctx, batches)
}

func (b *batch) send(ctx context.Context, batches chan<- *batch) error {
	select {
	case batches <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type fields struct {
	in *bufio.Reader
	// left is the number of bytes left in the message. A message that is not nested ends where the reader does.
	left   int64
	nested bool
}

// next returns the number and the size of the next bytes field. The caller must read the field. At the end of the message it returns io.EOF.
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
		switch kind {
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
