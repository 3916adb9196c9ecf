package coding

// A value is bytes in a form, both by number: of packing.known and packing.forms.
type value struct{ bytes, form int32 }

var nothing = value{bytes: -1}

// scalar is a value that may not have been there before.
type scalar struct {
	value
	form form
	raw  []byte
}

const (
	mostColumns = 1024
	mostRows    = 128 // rows of a column that are looked back on
	mostRecent  = 16
	mostLinks   = 8
	firstLink   = 3 // guesses before those of links
)

// column is what stands in one place of all objects of a list, or one of the places within bytes.
type column struct {
	number int32
	object *column // of the objects that it is a member of

	// Of objects, and of lists.
	kind    [4]odds
	members []*member
	byKey   map[string]*member
	start   member
	novel   [4]odds
	alike   odds // of a new member to the one before
	element *column
	length  int // of the list before
	more    [3]odds
	row     int  // of the object that was last begun
	open    bool // it has not ended
	link    int  // the row that is being referred to
	linked  int  // the object since which it is

	// Of scalars.
	was    int // the guess that was right; zero: none
	hit    [firstLink + mostLinks + 1]odds
	which  [firstLink + mostLinks + 1][firstLink + mostLinks]odds
	mode   [4]odds
	back   [mostRecent]odds
	forms  [64]odds
	recent []value // the last first
	rows   []rowValue
	links  []link
	used   int // of links, the one that was made last
	fresh  *fresh

	// Of bytes.
	items []*column
	bytes odds
	part  *column
}

// fresh are the odds of what has not been there before.
type fresh struct {
	size, zeros, digits, delta quantity
	long, sign, like           odds
	from                       [mostRecent]odds
	same                       [4]odds
	letter                     [256]odds
}

// member is a member of objects, and says which comes behind it.
type member struct {
	key    string
	column *column
	next   *member // nil: none
	known  bool
	odds   odds
}

type rowValue struct {
	row int
	value
}

// link says that a value is often the one that another column has in the row that is referred to, or in the next.
type link struct {
	form   int32
	column *column
	ahead  int
}

// at returns the value of a row.
func (c *column) at(row int) value {
	if len(c.rows) == 0 || row < 0 {
		return nothing
	}
	if r := c.rows[row%len(c.rows)]; r.row == row {
		return r.value
	}
	return nothing
}

func (c *column) put(row int, v value) {
	if c.rows == nil {
		c.rows = make([]rowValue, mostRows)
		for i := range c.rows {
			c.rows[i].row = -1
		}
	}
	c.rows[row%len(c.rows)] = rowValue{row, v}
}

// remember moves a value to the front of the recent ones.
func (c *column) remember(v value) {
	at := len(c.recent)
	for i, r := range c.recent {
		if r == v {
			at = i
			break
		}
	}
	if at == len(c.recent) {
		if at < mostRecent {
			c.recent = append(c.recent, v)
		} else {
			at--
		}
	}
	copy(c.recent[1:at+1], c.recent[:at])
	c.recent[0] = v
}

func (c *column) odds() *fresh {
	if c.fresh == nil {
		c.fresh = new(fresh)
	}
	return c.fresh
}

// learn notes a link, unless it is known, in the place of an old one where there are many.
func (c *column) learn(l link) {
	for _, known := range c.links {
		if known == l {
			return
		}
	}
	if len(c.links) < mostLinks {
		c.links = append(c.links, l)
		return
	}
	c.used = (c.used + 1) % mostLinks
	c.links[c.used] = l
}

// guesses are what a value may be.
func (p *packing) guesses(c *column) (g [firstLink + mostLinks]value, n int) {
	g[0], g[1], g[2] = p.afterBoth[p.both(c)], p.afterOne[p.one(c)], nothing
	if len(c.recent) > 0 {
		g[2] = c.recent[0]
	}
	for i, l := range c.links {
		g[firstLink+i] = nothing
		if v := l.column.at(l.column.object.link + l.ahead); v.bytes >= 0 {
			g[firstLink+i] = value{v.bytes, l.form}
		}
	}
	return g, firstLink + len(c.links)
}

const contexts = 1 << 14

func (p *packing) one(c *column) uint32 {
	return (uint32(c.number)*0x9e3779b1 ^ uint32(p.last.bytes)*0x85ebca6b) * 0xc2b2ae35 >> 18 % contexts
}

func (p *packing) both(c *column) uint32 {
	return (uint32(c.number)*0x9e3779b1 ^ uint32(p.last.bytes)*0x85ebca6b ^ uint32(p.before.bytes)*0x27d4eb2f) * 0xc2b2ae35 >> 18 % contexts
}

// scalar packs or unpacks a value of a column. home is the column by which others find it.
func (p *packing) scalar(c, home *column, s scalar) value {
	g, n := p.guesses(c)
	right := -1
	if !p.reading && s.bytes >= 0 {
		for i, v := range g[:n] {
			if v == s.value {
				right = i
				break
			}
		}
	}
	var v value
	if p.yes(&c.hit[c.was], right >= 0) {
		right = p.whichOf(c, g[:n], right)
		if v = g[right]; v.bytes < 0 {
			p.fail()
			return value{}
		}
		if right >= firstLink {
			l := c.links[right-firstLink]
			p.refer(l.column.object, l.column.object.link+l.ahead)
		}
		c.was = right + 1
	} else {
		v = p.unguessed(c, home, s)
		c.was = 0
	}
	p.note(c, home, v)
	return v
}

// whichOf says which guess is right. Those that are nothing, or that were wrong before, are none.
func (p *packing) whichOf(c *column, g []value, right int) int {
	for i, v := range g[:len(g)-1] {
		if v.bytes < 0 || i > 0 && v == g[i-1] {
			continue
		}
		if p.yes(&c.which[c.was][i], i == right) {
			return i
		}
	}
	return len(g) - 1
}

// refer notes the row of other objects that this object refers to: the first one counts.
func (p *packing) refer(objects *column, row int) {
	if !objects.open && objects.linked != p.objects {
		objects.link, objects.linked = row, p.objects
	}
}

func (p *packing) note(c, home *column, v value) {
	p.afterBoth[p.both(c)], p.afterOne[p.one(c)] = v, v
	p.before, p.last = p.last, v
	c.remember(v)
	home.put(home.object.row, v)
	if k := p.forms[v.form].kind; k.isNumber() {
		p.numbers[k] = v
	}
}

// How a value is written that was not guessed.
const (
	modeFresh  = iota // it was not there before
	modeKnown         // somewhere
	modeRecent        // in this column
)

func (p *packing) unguessed(c, home *column, s scalar) value {
	mode, at := modeFresh, 0
	if !p.reading && s.bytes >= 0 {
		mode = modeKnown
		for i, r := range c.recent {
			if r == s.value {
				mode, at = modeRecent, i
			}
		}
	}
	mode = p.choice(c.mode[:], mode)
	if mode == modeRecent {
		if at = p.choice(c.back[:], at); at >= len(c.recent) {
			p.fail()
			return value{}
		}
		return c.recent[at]
	}
	number, f := p.form(c, s)
	if mode == modeKnown {
		at := p.below(len(p.known), int(s.bytes))
		if at >= len(p.known) {
			p.fail()
			return value{}
		}
		p.relate(c, number, p.known[at])
		return value{int32(at), number}
	}
	raw := p.freshBytes(c, home, f, s.raw)
	return value{p.know(raw, home), number}
}

// relate learns where a value was known from.
func (p *packing) relate(c *column, number int32, from known) {
	objects := from.column.object
	ahead := from.row - objects.link
	if ahead != 0 && ahead != 1 {
		p.refer(objects, from.row)
		ahead = from.row - objects.link
	}
	if ahead == 0 || ahead == 1 {
		c.learn(link{number, from.column, ahead})
		p.refer(objects, from.row)
	}
}

// otherForm stands for one that is not known yet, and bounds their number.
const otherForm = 63

// form packs or unpacks the number of a form.
func (p *packing) form(c *column, s scalar) (int32, form) {
	number := p.choice(c.forms[:], int(s.value.form))
	if number < len(p.forms) {
		return int32(number), p.forms[number]
	}
	f := form{formKind(p.flat(5, uint64(s.form.kind))), ""}
	f.part = string(p.phrase([]byte(s.form.part)))
	if number != otherForm || f.kind >= formKinds || len(f.part) > mostPart || len(p.forms) >= otherForm {
		p.fail()
		return 0, form{}
	}
	p.forms = append(p.forms, f)
	return int32(len(p.forms) - 1), f
}
