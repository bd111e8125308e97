package configsource

import (
	"reflect"
	"slices"
	"testing"
)

// A field that is not compared would leave a running agent with the settings that it started with.
func TestEveryAnnotationAndLabelIsCompared(t *testing.T) {
	t.Parallel()
	flags := []string{"Path", "Dir", "Default"} // They do not change while the agent runs.
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Inputs]()) {
		if field.Type.Kind() != reflect.String || slices.Contains(flags, field.Name) {
			continue
		}
		var changed Inputs
		reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index).SetString("other")
		if sameInputs(Inputs{}, changed) {
			t.Errorf("a changed %s is not noticed", field.Name)
		}
	}
}
