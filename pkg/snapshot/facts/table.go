package facts

import (
	"hash/maphash"
	"iter"
	"maps"
)

// shards is the number of parts of a table. Changing one of 50,000 values copies 200 of them.
const shards = 256

var seed = maphash.MakeSeed()

// table is an immutable map from strings to values. An edit creates a new table, which shares the unchanged parts.
type table[V any] struct {
	parts *[shards]map[string]V
	size  int
}

func shardOf(key string) uint64 { return maphash.String(seed, key) % shards }

// get returns the value of a key, and the zero value if there is none.
func (t table[V]) get(key string) V {
	if t.parts == nil {
		var none V
		return none
	}
	return t.parts[shardOf(key)][key]
}

// all returns the values with their keys, in no order.
func (t table[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		if t.parts == nil {
			return
		}
		for _, part := range t.parts {
			for key, value := range part {
				if !yield(key, value) {
					return
				}
			}
		}
	}
}

// edit is a table under construction. It copies a part before its first change.
type edit[V any] struct {
	table[V]
	own [shards]bool
}

func editOf[V any](t table[V]) *edit[V] { return &edit[V]{table: t} }

// writablePart returns the part of a key for changes.
func (e *edit[V]) writablePart(key string) map[string]V {
	i := shardOf(key)
	if e.own[i] {
		return e.parts[i]
	}
	if e.own == [shards]bool{} {
		parts := [shards]map[string]V{}
		if e.parts != nil {
			parts = *e.parts
		}
		e.parts = &parts
	}
	e.own[i] = true
	if e.parts[i] = maps.Clone(e.parts[i]); e.parts[i] == nil {
		e.parts[i] = map[string]V{}
	}
	return e.parts[i]
}

func (e *edit[V]) set(key string, value V) {
	part := e.writablePart(key)
	before := len(part)
	part[key] = value
	e.size += len(part) - before
}

func (e *edit[V]) remove(key string) {
	part := e.writablePart(key)
	before := len(part)
	delete(part, key)
	e.size += len(part) - before
}
