package schedule_test

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"karve.sh/karve/pkg/schedule"
)

func parsed(t *testing.T, text string, zone *time.Location) schedule.Schedule {
	t.Helper()
	s, err := schedule.Parse(text, zone)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return s
}

func TestATimeIsThatOfTheZone(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		text string
		zone *time.Location
		want int
	}{
		"UTC": {"0 9 * * *", time.UTC, 9}, "summer time in Berlin": {"0 9 * * *", berlin, 7}, "a macro": {"@daily", berlin, 22},
	} {
		if got := parsed(t, c.text, c.zone).Next(now); got.Hour() != c.want || got.Location() != time.UTC {
			t.Errorf("%s: %s, want %d o'clock UTC", name, got, c.want)
		}
	}
}

func TestAScheduleIsOpenFromItsTimesOn(t *testing.T) {
	t.Parallel()
	s := parsed(t, "0 9 * * *", time.UTC)
	day := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for hours, want := range map[int]bool{8: false, 9: true, 14: true, 15: false} {
		if got := s.Open(day.Add(time.Duration(hours)*time.Hour), 6*time.Hour); got != want {
			t.Errorf("at %d o'clock: %t", hours, got)
		}
	}
}

func TestAScheduleThatIsNeverIsNotOpen(t *testing.T) {
	t.Parallel()
	s := parsed(t, "0 0 31 2 *", time.UTC)
	now := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	if next := s.Next(now); !next.IsZero() || s.Open(now, 720*time.Hour) {
		t.Errorf("the 31st of February is %s", next)
	}
}

func TestOtherTextsAreErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", " ", "TZ=0", "CRON_TZ=", "TZ=UTC 0 9 * * *", "CRON_TZ=UTC @daily", "0 9 * *", "0 25 * * *", "0 0 */0 * *", "@every", "@never", strings.Repeat("0,", schedule.MaxLength/2) + "0 9 * * *"} {
		if _, err := schedule.Parse(text, time.UTC); err == nil || len(err.Error()) > 2*schedule.MaxLength {
			t.Errorf("%.30q: %v", text, err)
		}
	}
	all := "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59" +
		" 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31" +
		" jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec mon,tue,wed,thu,fri,sat,sun"
	parsed(t, all, time.UTC)
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"TZ=", "0 9 * * mon-fri", "@every 1ns", "0 0 29 2 1", "*/59 23 31 */11 *", "59 23 31 2 0"} {
		f.Add(text, "America/Sao_Paulo", int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, text, zone string, unix int64) {
		where, err := time.LoadLocation(zone)
		if err != nil {
			return
		}
		s, err := schedule.Parse(text, where)
		if err != nil {
			return
		}
		now := time.Unix(unix%(1<<33), 0)
		if next := s.Next(now); !next.IsZero() && !next.After(now) {
			t.Errorf("%q in %s is at %s after %s", text, zone, next, now)
		}
	})
}
