package cost

import (
	"fmt"
	"strings"
	"time"

	"karve.sh/karve/pkg/words"
)

// WindowsPerHour is the number of samples that the recording rules write in an hour.
const WindowsPerHour = 12

const windowMinutes = 60 / WindowsPerHour

// Coverage says for how much of a range there is data. Time without data counts as $0.
type Coverage struct {
	Hours          int `json:"hours"`
	MissingMinutes int `json:"missingMinutes"`
	// Gaps are the hours without some data, in order.
	Gaps []Gap `json:"gaps,omitempty"`
}

// Gap is a time span of full hours in which data is missing: in all of them, or in one of them for some minutes.
type Gap struct {
	Range
	MissingMinutes int `json:"missingMinutes"`
}

// CoverageOf returns the coverage of a range of whose hours this many windows have data.
func CoverageOf(r Range, windows []int) Coverage {
	c := Coverage{Hours: r.Hours()}
	for i := range c.Hours {
		covered := 0
		if i < len(windows) {
			covered = min(WindowsPerHour, max(0, windows[i]))
		}
		missing := (WindowsPerHour - covered) * windowMinutes
		if missing == 0 {
			continue
		}
		c.MissingMinutes += missing
		hour := Range{r.From.Add(time.Duration(i) * time.Hour), r.From.Add(time.Duration(i+1) * time.Hour)}
		if n := len(c.Gaps); covered == 0 && n > 0 && c.Gaps[n-1].whole() && c.Gaps[n-1].To.Equal(hour.From) {
			c.Gaps[n-1].To = hour.To
			c.Gaps[n-1].MissingMinutes += missing
			continue
		}
		c.Gaps = append(c.Gaps, Gap{hour, missing})
	}
	return c
}

func (g Gap) whole() bool { return g.MissingMinutes == g.Hours()*60 }

// MissingIn returns for how many minutes of a part of the range there is no data.
func (c Coverage) MissingIn(r Range) int {
	sum := 0
	for _, g := range c.Gaps {
		from, to := g.From, g.To
		if from.Before(r.From) {
			from = r.From
		}
		if to.After(r.To) {
			to = r.To
		}
		if hours := (Range{from, to}).Hours(); hours > 0 {
			sum += g.MissingMinutes * hours / g.Hours()
		}
	}
	return sum
}

const namedGaps = 4

// Text says which hours have no data. It returns "" if none is missing.
func (c Coverage) Text() string {
	if c.MissingMinutes == 0 {
		return ""
	}
	var named []string
	for _, g := range c.Gaps[:min(namedGaps, len(c.Gaps))] {
		text := g.Range.String()
		if !g.whole() {
			text = fmt.Sprintf("%s in the hour from %s", minutes(g.MissingMinutes), g.From.Format("2006-01-02 15:04 UTC"))
		}
		named = append(named, text)
	}
	return fmt.Sprintf("no data for %s of %s (%s), which count as $0: %s", minutes(c.MissingMinutes), minutes(c.Hours*60), percent(c.MissingMinutes, c.Hours*60), words.More(strings.Join(named, "; "), len(c.Gaps)-namedGaps))
}

func minutes(n int) string { return words.Span(time.Duration(n) * time.Minute) }

// percent never rounds to 0 % or 100 % what is neither.
func percent(part, all int) string {
	switch p := 100 * float64(part) / float64(all); {
	case p < 0.1:
		return "less than 0.1 %"
	case p > 99.9 && part < all:
		return "more than 99.9 %"
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}
