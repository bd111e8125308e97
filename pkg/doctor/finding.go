package doctor

import (
	"fmt"
	"regexp"
	"strings"
)

// Severity is the severity of a finding.
type Severity string

// Severities, the most severe first.
const (
	// Error is for findings that keep Karve from working, in whole or for some pools or nodes.
	Error Severity = "error"
	// Warning is for findings that will or may become an error, or that cost money.
	Warning Severity = "warning"
	// Unknown is for data that could not be read.
	Unknown Severity = "unknown"
)

// Finding is a problem.
type Finding struct {
	Severity Severity `json:"severity"`
	// Object is the object with the problem, such as NodePool gpu-shared.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Fix is a command or a line of a manifest.
	Fix string `json:"fix"`
}

// maxNamed is how many installations or NodePools a message names.
const maxNamed = 3

// plainWord matches words that a shell passes on as they are.
var plainWord = regexp.MustCompile(`^[\w.:/@%+=-]+$`)

// command returns a command to paste into a shell. Arguments come from objects and are quoted, unless they are plain words.
func command(format string, arguments ...string) string {
	quoted := make([]any, len(arguments))
	for i, word := range arguments {
		if !plainWord.MatchString(word) {
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		quoted[i] = word
	}
	return fmt.Sprintf(format, quoted...)
}

// helm returns a command of Helm for Karve's release, which is in the namespace of the controller, or in that of the guide if there is none.
func (f *Facts) helm(verb string) string {
	namespace := "karve-system"
	if len(f.Controllers) > 0 {
		namespace = f.Controllers[0].Namespace
	}
	return command("helm -n %s ", namespace) + verb
}
