package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

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
// the encoded object, if wanted is not nil. It decodes a page while the next one is read.
func each[T any, P decoded[T]](ctx context.Context, api rest.Interface, resource string, without omitted, wanted func(message []byte) bool, f func(P)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	pages, failed := make(chan [][]byte, 1), make(chan error, 1)
	go func() {
		defer close(pages)
		for next := ""; ; {
			items, more, err := page(ctx, api, resource, next)
			if err != nil {
				failed <- err
				return
			}
			select {
			case pages <- items:
			case <-ctx.Done():
				return
			}
			if next = more; next == "" {
				return
			}
		}
	}()
	var buffer []byte
	for items := range pages {
		for _, message := range items {
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
	}
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

// protobufMagic begins all answers in protobuf.
var protobufMagic = []byte("k8s\x00")

// page reads a page of a list. It returns the encoded objects, and the token of the next page, which is empty after the last one.
func page(ctx context.Context, api rest.Interface, resource, token string) (items [][]byte, next string, err error) {
	result := api.Get().Resource(resource).VersionedParams(&metav1.ListOptions{Limit: perPage, Continue: token}, scheme.ParameterCodec).Do(ctx)
	if err := result.Error(); err != nil { // It knows what the API server says of the error.
		return nil, "", err
	}
	body, err := result.Raw()
	if err != nil {
		return nil, "", err
	}
	envelope, ok := bytes.CutPrefix(body, protobufMagic)
	if !ok {
		return nil, "", errors.New("the API server does not answer in protobuf")
	}
	const raw, listMeta, item = 2, 1, 2 // of runtime.Unknown, and of a list
	err = eachField(envelope, func(number protowire.Number, list []byte) error {
		if number != raw {
			return nil
		}
		return eachField(list, func(number protowire.Number, value []byte) error {
			switch number { //nolint:exhaustive // The other fields are dropped.
			case item:
				items = append(items, value)
			case listMeta:
				var m metav1.ListMeta
				if err := m.Unmarshal(value); err != nil {
					return err
				}
				next = m.Continue
			}
			return nil
		})
	})
	if err != nil {
		return nil, "", fmt.Errorf("decoding %s: %w", resource, err)
	}
	return items, next, nil
}

// eachField calls a function with the fields of a message that are bytes.
func eachField(message []byte, f func(number protowire.Number, value []byte) error) error {
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		n := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[tag:])
			if err := f(number, value); err != nil {
				return err
			}
		}
		message = message[tag+n:]
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
