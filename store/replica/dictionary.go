package replica

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

// What packed rows refer to: see index.Packer. Each text and each sample is under its number, 4 bytes big-endian.
var (
	bucketTexts   = []byte("texts")
	bucketSamples = []byte("samples")
)

// A sample is learned when there are learnFirst packets, and again when there are learnAgain times as many, for what packets carry
// changes with the years.
const (
	learnFirst = 500
	learnAgain = 32
	maxSamples = 6

	sampleRows = 64 // more than have room in a sample
)

func numberKey(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// loadDictionary makes the dictionary that the file has the one that is used.
func (r *Store) loadDictionary(tx *bbolt.Tx) error {
	if err := checkSchema(tx); err != nil {
		return err
	}
	r.packer = index.NewPacker(unsealAll(tx, bucketTexts), unsealAll(tx, bucketSamples))
	r.dictionary.Store(r.packer.Dictionary())
	return nil
}

// unsealAll returns copies of the values of a bucket, in the order of their keys.
func unsealAll(tx *bbolt.Tx, bucket []byte) (values [][]byte) {
	cursor := tx.Bucket(bucket).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		if !bytes.Equal(k, numberKey(len(values))) { // a page that has lost an entry
			panic(damage(fmt.Sprintf("%x stands where number %d of the dictionary does", k, len(values))))
		}
		values = append(values, append([]byte(nil), unseal(sumOf(bucket), k, v)...))
	}
	return values
}

// keepDictionary writes what the batch has added to the dictionary, and shows it to readers: who begins after the commit needs it.
func (w *batchWriter) keepDictionary() error {
	texts := w.tx.Bucket(bucketTexts)
	kept := int(texts.Sequence())
	added := w.r.packer.Texts(kept)
	if len(added) == 0 && !w.learned {
		return nil
	}
	for i, text := range added {
		if err := put(w.tx, bucketTexts, numberKey(kept+i), text); err != nil {
			return err
		}
	}
	w.r.dictionary.Store(w.r.packer.Dictionary())
	return texts.SetSequence(uint64(kept + len(added)))
}

// learn makes a sample, where one is due, of some new rows of the batch and of the last ones of the file. A batch without new ones may
// change nothing, and what it has learned would be lost.
func (w *batchWriter) learn(rows []index.Row, isNew []bool) error {
	have := w.r.packer.Samples()
	due := learnFirst
	for range have {
		due *= learnAgain
	}
	var coming []index.Row
	for i, row := range rows {
		if isNew[i] && row.Type() == index.PacketType {
			coming = append(coming, row)
		}
	}
	if len(coming) == 0 || have == maxSamples || w.count(packets)+uint64(len(coming)) < uint64(due) {
		return nil
	}
	var of []index.Row
	for n := 0; n < len(coming); n += len(coming)/sampleRows + 1 {
		of = append(of, coming[n])
	}
	cursor := w.rows[packets.number].Cursor()
	for k, v := cursor.Last(); k != nil && len(of) < sampleRows; k, v = cursor.Prev() {
		of = append(of, packets.found(w.r.packer, k, v))
	}
	w.learned = true
	return put(w.tx, bucketSamples, numberKey(have), w.r.packer.Learn(of))
}

// hasLearned tells whether the batch has added to the dictionary.
func (w *batchWriter) hasLearned() bool {
	return w != nil && (w.learned || len(w.r.packer.Texts(w.texts)) > 0)
}

func (w *batchWriter) count(c *collection) uint64 {
	return countOf(get(w.tx, bucketStats, statKey(c, statTotal, "")))
}
