package cost

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Range is a time span that begins and ends on a full hour, in UTC.
type Range struct {
	From time.Time `json:"from"`
	// To is the end, which is not part of the range.
	To time.Time `json:"to"`
}

// Hours returns the number of hours in the range.
func (r Range) Hours() int { return int(r.To.Sub(r.From) / time.Hour) }

// String returns the range as text.
func (r Range) String() string {
	const minute = "2006-01-02 15:04"
	return fmt.Sprintf("%s to %s UTC", r.From.Format(minute), r.To.Format(minute))
}

// Wanted is a range as a person states it: Since, or From and To, or Month. If all are "", it is the last 30 days.
type Wanted struct {
	// Since is a number of hours, days or weeks: 12h, 30d, 4w.
	Since string
	// From and To are dates or times: 2026-10-01, 2026-10-01T12:00Z. Without To, the range ends now.
	From, To string
	// Month is a calendar month: 2026-10.
	Month string
}

// maxLength is the longest range.
const maxLength = 1100 * 24 * time.Hour

// Range returns the range. It ends with the last full hour before now, even if a later end is wanted.
func (w Wanted) Range(now time.Time) (Range, error) {
	now = now.UTC().Truncate(time.Hour)
	r := Range{To: now}
	var err error
	switch {
	case w.Since != "" && (w.From != "" || w.To != "" || w.Month != ""), w.Month != "" && (w.From != "" || w.To != ""):
		return r, errors.New("--since, --month, and --from with --to exclude each other")
	case w.Month != "":
		r, err = monthOf(w.Month)
	case w.From != "":
		r, err = between(w.From, w.To, now)
	case w.To != "":
		return r, errors.New("--to needs --from")
	default:
		r, err = sinceOf(w.Since, now)
	}
	if err != nil {
		return r, err
	}
	if !r.From.Before(now) {
		return r, fmt.Errorf("the range %s has not begun: there is data until %s at most", r, now.Format("2006-01-02 15:04"))
	}
	if r.To.After(now) {
		r.To = now
	}
	if r.To.Sub(r.From) > maxLength {
		return r, fmt.Errorf("the range %s is longer than %d days", r, maxLength/(24*time.Hour))
	}
	return r, nil
}

func monthOf(text string) (Range, error) {
	from, err := time.Parse("2006-01", text)
	if err != nil {
		return Range{}, fmt.Errorf("--month must be a month such as 2026-10, not %q", text)
	}
	return Range{from, from.AddDate(0, 1, 0)}, nil
}

var ago = regexp.MustCompile(`^(\d{1,6})([hdw])$`)

func sinceOf(text string, now time.Time) (Range, error) {
	if text == "" {
		text = "30d"
	}
	m := ago.FindStringSubmatch(text)
	if m == nil {
		return Range{}, fmt.Errorf("--since must be a number of hours, days or weeks, such as 12h, 30d or 4w, not %q", text)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil || n == 0 {
		return Range{}, fmt.Errorf("--since must be more than 0, not %q", text)
	}
	unit := map[string]time.Duration{"h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}[m[2]]
	return Range{now.Add(-time.Duration(n) * unit), now}, nil
}

func between(from, to string, now time.Time) (Range, error) {
	r := Range{To: now}
	var err error
	if r.From, err = timeOf("--from", from); err != nil {
		return r, err
	}
	if to != "" {
		if r.To, err = timeOf("--to", to); err != nil {
			return r, err
		}
		if !r.From.Before(r.To) {
			return r, fmt.Errorf("--from %s is not before --to %s", from, to)
		}
	}
	return r, nil
}

// timeOf parses a date or a time.
func timeOf(flag, text string) (time.Time, error) {
	for _, layout := range []string{"2006-01-02", time.RFC3339, "2006-01-02T15:04Z07:00"} {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if t = t.UTC(); !t.Truncate(time.Hour).Equal(t) {
			return t, fmt.Errorf("%s must be a full hour, not %s", flag, text)
		}
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%s must be a date or a time such as 2026-10-01 or 2026-10-01T12:00Z, not %q", flag, text)
}

// hourly is the longest range that is divided hour by hour.
const hourly = 48 * time.Hour

// Spans returns the consecutive parts of the range in which idle and overhead are divided: hours for up to two days, and otherwise days in UTC, of which the first
// and the last may be cut.
func (r Range) Spans() []Range {
	step := 24 * time.Hour
	if r.To.Sub(r.From) <= hourly {
		step = time.Hour
	}
	var all []Range
	for from := r.From; from.Before(r.To); {
		to := from.Truncate(step).Add(step) // Days since the zero time begin at midnight UTC.
		if to.After(r.To) {
			to = r.To
		}
		all = append(all, Range{from, to})
		from = to
	}
	return all
}
