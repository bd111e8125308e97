package main

import (
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// factory creates informers that do not run. Objects are added to them directly, and handlers are called synchronously. So thousands of scenes take
// seconds, and nothing has to wait.
type factory struct {
	informers.SharedInformerFactory
	client kubernetes.Interface
	made   map[reflect.Type]*informer
}

func newFactory(client kubernetes.Interface) *factory {
	return &factory{SharedInformerFactory: informers.NewSharedInformerFactory(client, 0), client: client, made: map[reflect.Type]*informer{}}
}

// Core and Storage are the groups of the objects in scenes. The informers of all other groups stay empty.
func (f *factory) Core() core.Interface       { return core.New(f, metav1.NamespaceAll, nil) }
func (f *factory) Storage() storage.Interface { return storage.New(f, metav1.NamespaceAll, nil) }

func (f *factory) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	kind := reflect.TypeOf(obj)
	if f.made[kind] == nil {
		f.made[kind] = &informer{SharedIndexInformer: make(f.client, 0)}
	}
	return f.made[kind]
}

// set adds objects to the informer of their kind, or replaces those with the same name. All informers must exist before.
func set[T runtime.Object](f *factory, objects ...T) error {
	for _, obj := range objects {
		i := f.made[reflect.TypeOf(obj)]
		if i == nil {
			return fmt.Errorf("no plugin looks at %T", obj)
		}
		old, found, err := i.GetIndexer().Get(obj)
		if err != nil {
			return fmt.Errorf("looking for an object: %w", err)
		}
		if err := i.GetIndexer().Add(obj); err != nil {
			return fmt.Errorf("adding an object: %w", err)
		}
		for _, h := range i.handlers {
			if found {
				h.OnUpdate(old, obj)
			} else {
				h.OnAdd(obj, false)
			}
		}
	}
	return nil
}

type informer struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

func (i *informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, h)
	return i.SharedIndexInformer.AddEventHandler(h)
}
