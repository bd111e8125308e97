package advice

import (
	"fmt"
	"strings"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/words"
)

// columns is the width of a terminal that lines fit in, except commands.
const columns = 80

// costs says what the pods cost, and for what.
func (a *Advice) costs() string {
	all := []string{fmt.Sprintf("A replay of them with Karve's planner costs $%s.", words.Cents(a.Replayed))}
	if a.Billed > 0 {
		all = append(all, fmt.Sprintf("The machines cost $%s.", words.Cents(a.Billed)))
	}
	for _, x := range a.Bought {
		if x.Price >= 0.05 {
			all = append(all, fmt.Sprintf("%s requests buy %.0f %% of the machines; their pods use %.0f %%.", titleOf(x.Resource), 100*x.Price, 100*x.Used))
		}
	}
	if a.GPUBusy != nil {
		all = append(all, fmt.Sprintf("The GPUs are busy %.0f %% of the time.", 100**a.GPUBusy))
	}
	return strings.Join(all, " ")
}

// Text returns the advice for people.
func (a *Advice) Text() string {
	var b strings.Builder
	const minute = "2006-01-02 15:04"
	wrap(&b, "", fmt.Sprintf("%s to %s UTC: %s, %s, %.1f at a time.", a.From.UTC().Format(minute), a.To.UTC().Format(minute),
		words.Count(a.Workloads, "workload"), words.Count(a.Pods, "pod"), a.MeanPods))
	wrap(&b, "", a.costs())
	b.WriteString("\n")
	if len(a.Steps) == 0 {
		wrap(&b, "", "No change is worth it: the replay denies, or the measurements forbid, all that would save half a percent or more.")
		return b.String()
	}
	wrap(&b, "", fmt.Sprintf("With all of the following, the replay costs $%s, %s less: $%s in 30 days. Each step saves this after the ones before it. Change the manifests if something applies them, such as Argo CD or Flux.",
		words.Cents(a.After), a.percentOf(a.Replayed-a.After), words.Cents(a.monthly(a.Replayed-a.After))))
	for i, step := range a.Steps {
		b.WriteString("\n")
		saves := fmt.Sprintf("%d. Save $%s in 30 days (%s)", i+1, words.Cents(a.monthly(step.Saves)), a.percentOf(step.Saves))
		if len(step.Changes) > 1 {
			saves += fmt.Sprintf(" with %d changes, of which none saves alone", len(step.Changes))
		}
		wrap(&b, "", saves)
		for _, c := range step.Changes {
			c.text(&b)
		}
	}
	return b.String()
}

func (c *Change) text(b *strings.Builder) {
	wrap(b, "   ", c.Object+": "+c.Do)
	for _, e := range c.Evidence {
		wrap(b, "   - measured: ", e)
	}
	for _, r := range c.Risks {
		wrap(b, "   - risk: ", r)
	}
	for _, p := range c.Patches {
		b.WriteString("\n")
		if p.Command == "" {
			fmt.Fprintf(b, "# in the pod template of %s\n%s", c.Object, p.YAML)
			continue
		}
		b.WriteString(wrapCommand(p.Command+" <<'EOF'") + "\n" + p.YAML + "EOF\n")
	}
}

// wrapCommand breaks a command that is longer than a line before its first flag.
func wrapCommand(command string) string {
	if at := strings.Index(command, " --"); len(command) > columns && at > 0 {
		return command[:at] + " \\\n " + command[at:]
	}
	return command
}

// wrap writes a text in lines that fit the terminal. The lines after the first are indented like it.
func wrap(b *strings.Builder, prefix, text string) {
	line, indent := prefix, strings.Repeat(" ", len(prefix))
	empty := true
	for word := range strings.FieldsSeq(text) {
		if !empty && len([]rune(line))+1+len([]rune(word)) > columns {
			b.WriteString(line + "\n")
			line, empty = indent, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(line + "\n")
}

// monthly returns an amount of the range as one of 30 days.
func (a *Advice) monthly(micro planner.MicroUSD) planner.MicroUSD {
	return planner.MicroUSD(float64(micro) * (30 * 24 * time.Hour).Hours() / a.To.Sub(a.From).Hours())
}

func (a *Advice) percentOf(micro planner.MicroUSD) string {
	return fmt.Sprintf("%.0f %%", 100*float64(micro)/float64(max(1, a.Replayed)))
}

func titleOf(resource string) string {
	if resource == "cpu" {
		return "CPU"
	}
	return strings.ToUpper(resource[:1]) + resource[1:]
}
