package cluster

import toolscache "k8s.io/client-go/tools/cache"

// Notes calls note for each object that an informer sees, with gone set if the object was deleted. For an object that was deleted while the informer's
// watch was broken, it calls missed with the last known state.
func Notes(note func(o any, gone bool), missed func(o any)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note(o, false) },
		UpdateFunc: func(_, o any) { note(o, false) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				missed(tombstone.Obj)
				return
			}
			note(o, true)
		},
	}
}
