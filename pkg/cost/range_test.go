package cost_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/cost"
)

func TestRangesAreFullHoursUntilNow(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 15, 14, 35, 12, 0, time.FixedZone("CEST", 7200))
	for name, c := range map[string]struct {
		wanted cost.Wanted
		text   string
	}{
		"the default":                    {cost.Wanted{}, "2026-09-15 12:00 to 2026-10-15 12:00 UTC"},
		"hours":                          {cost.Wanted{Since: "6h"}, "2026-10-15 06:00 to 2026-10-15 12:00 UTC"},
		"weeks":                          {cost.Wanted{Since: "2w"}, "2026-10-01 12:00 to 2026-10-15 12:00 UTC"},
		"a month":                        {cost.Wanted{Month: "2026-02"}, "2026-02-01 00:00 to 2026-03-01 00:00 UTC"},
		"the month that is not over":     {cost.Wanted{Month: "2026-10"}, "2026-10-01 00:00 to 2026-10-15 12:00 UTC"},
		"from a date":                    {cost.Wanted{From: "2026-10-01"}, "2026-10-01 00:00 to 2026-10-15 12:00 UTC"},
		"from a date to a time":          {cost.Wanted{From: "2026-10-01", To: "2026-10-02T14:00+02:00"}, "2026-10-01 00:00 to 2026-10-02 12:00 UTC"},
		"to a time that is not over":     {cost.Wanted{From: "2026-10-01", To: "2027-01-01"}, "2026-10-01 00:00 to 2026-10-15 12:00 UTC"},
		"a month to come":                {cost.Wanted{Month: "2026-11"}, "has not begun"},
		"from a time to come":            {cost.Wanted{From: "2026-10-16"}, "has not begun"},
		"two ways":                       {cost.Wanted{Since: "1d", Month: "2026-10"}, "exclude each other"},
		"a month with an end":            {cost.Wanted{Month: "2026-10", To: "2026-10-02"}, "exclude each other"},
		"an end without a beginning":     {cost.Wanted{To: "2026-10-02"}, "--to needs --from"},
		"backwards":                      {cost.Wanted{From: "2026-10-02", To: "2026-10-01"}, "is not before"},
		"nothing":                        {cost.Wanted{Since: "0d"}, "more than 0"},
		"no unit":                        {cost.Wanted{Since: "30"}, `--since must be a number of hours, days or weeks, such as 12h, 30d or 4w, not "30"`},
		"no month":                       {cost.Wanted{Month: "October"}, `--month must be a month such as 2026-10, not "October"`},
		"no date":                        {cost.Wanted{From: "yesterday"}, `--from must be a date or a time such as 2026-10-01 or 2026-10-01T12:00Z, not "yesterday"`},
		"half an hour":                   {cost.Wanted{From: "2026-10-01T12:30Z"}, "--from must be a full hour"},
		"longer than anybody keeps data": {cost.Wanted{Since: "300w"}, "longer than 1100 days"},
	} {
		r, err := c.wanted.Range(now)
		if got := r.String(); err == nil && got != c.text || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.text)
		}
	}
}

func TestLongRangesAreDividedIntoDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[[2]string][]string{
		{"2026-10-01T22", "2026-10-02T01"}: {"2026-10-01T22", "2026-10-01T23", "2026-10-02T00"},
		{"2026-10-01T22", "2026-10-04T02"}: {"2026-10-01T22", "2026-10-02T00", "2026-10-03T00", "2026-10-04T00"},
		{"2026-10-01T00", "2026-10-04T00"}: {"2026-10-01T00", "2026-10-02T00", "2026-10-03T00"},
	} {
		r := cost.Range{From: at(t, text[0]), To: at(t, text[1])}
		var got []string
		end := r.From
		for _, s := range r.Spans() {
			if got = append(got, s.From.Format("2006-01-02T15")); !s.From.Equal(end) {
				t.Errorf("%v: %v begins elsewhere than the one before ends", text, s)
			}
			end = s.To
		}
		if diff := cmp.Diff(want, got); diff != "" || !end.Equal(r.To) {
			t.Errorf("%v: until %v (-want +got):\n%s", text, end, diff)
		}
	}
}

func TestHoursWithoutDataAreNamed(t *testing.T) {
	t.Parallel()
	r := cost.Range{From: at(t, "2026-10-01T00"), To: at(t, "2026-10-01T10")}
	for name, c := range map[string]struct {
		windows []int
		want    string
	}{
		"all":          {[]int{12, 12, 12, 12, 12, 12, 12, 12, 12, 13}, ""},
		"hours":        {[]int{12, 0, 0, 12, 12, 12, 12, 0, 12, 12}, "no data for 3h of 10h (30.0 %), which count as $0: 2026-10-01 01:00 to 2026-10-01 03:00 UTC; 2026-10-01 07:00 to 2026-10-01 08:00 UTC"},
		"minutes":      {[]int{12, 12, 11, 12, 12, 12, 12, 12, 12, 12}, "no data for 5m of 10h (0.8 %), which count as $0: 5m in the hour from 2026-10-01 02:00 UTC"},
		"both":         {[]int{12, 12, 8, 0, 3, 12, 12, 12, 12, 12}, "no data for 2h5m of 10h (20.8 %), which count as $0: 20m in the hour from 2026-10-01 02:00 UTC; 2026-10-01 03:00 to 2026-10-01 04:00 UTC; 45m in the hour from 2026-10-01 04:00 UTC"},
		"the rest":     {[]int{12, 12, 12, 12, 12, 12}, "no data for 4h of 10h (40.0 %), which count as $0: 2026-10-01 06:00 to 2026-10-01 10:00 UTC"},
		"many of them": {[]int{0, 12, 0, 12, 0, 12, 0, 12, 0, 12}, "no data for 5h of 10h (50.0 %), which count as $0: 2026-10-01 00:00 to 2026-10-01 01:00 UTC; 2026-10-01 02:00 to 2026-10-01 03:00 UTC; 2026-10-01 04:00 to 2026-10-01 05:00 UTC; 2026-10-01 06:00 to 2026-10-01 07:00 UTC and 1 more"},
	} {
		if got := cost.CoverageOf(r, c.windows).Text(); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, c.want)
		}
	}
	if c := cost.CoverageOf(r, nil); c.MissingMinutes != 600 {
		t.Errorf("%+v", c)
	}
	c := cost.CoverageOf(r, []int{12, 0, 0, 12, 6, 12, 12, 0, 12, 12})
	for span, want := range map[[2]string]int{{"2026-10-01T00", "2026-10-01T10"}: 210, {"2026-10-01T02", "2026-10-01T04"}: 60, {"2026-10-01T04", "2026-10-01T05"}: 30, {"2026-10-01T08", "2026-10-01T10"}: 0} {
		if got := c.MissingIn(cost.Range{From: at(t, span[0]), To: at(t, span[1])}); got != want {
			t.Errorf("%d minutes are missing in %v, want %d", got, span, want)
		}
	}
}
