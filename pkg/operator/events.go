package operator

import (
	"fmt"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"karve.sh/karve/pkg/plain"
)

// eventRecorder records each note of an event. For client-go's recorder, events about the same version of an object are one series if they differ only in their
// notes, and the series has the note of the first. It tells series apart by the action, among others, so the action ends with a hash of the note.
// Notes are as [plain.Line] returns them, because they contain text of objects.
type eventRecorder struct{ events.EventRecorder }

func (r eventRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	message := plain.Line(fmt.Sprintf(note, args...))
	h := fnv.New32a()
	_, _ = h.Write([]byte(message))
	r.EventRecorder.Eventf(regarding, related, kind, reason, fmt.Sprintf("%s-%08x", action, h.Sum32()), "%s", message)
}
