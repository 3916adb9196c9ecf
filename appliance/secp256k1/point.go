package secp256k1

import curve "github.com/consensys/gnark-crypto/ecc/secp256k1"

// affine is a point of secp256k1 other than the point at infinity.
type affine struct{ x, y element }

func affineOf(p *curve.G1Affine) affine {
	x, y := p.X.Bytes(), p.Y.Bytes()
	return affine{elementOf(&x), elementOf(&y)}
}

// jacobian is the point (x/z², y/z³). Its additions need no division. If z is zero, it is the point at infinity.
type jacobian struct{ x, y, z element }

// plus returns p + q. ok is false if both have the same x coordinate, because then p is q, whose double needs other
// formulas, or -q.
func (p jacobian) plus(q affine) (sum jacobian, ok bool) {
	if p.z == (element{}) {
		return jacobian{q.x, q.y, one}, true
	}
	zz := p.z.square()
	h := q.x.times(zz).minus(p.x)
	if h.isZero() {
		return jacobian{}, false
	}
	r := q.y.times(zz.times(p.z)).minus(p.y)
	hh := h.square()
	hhh, v := hh.times(h), hh.times(p.x)
	sum.x = r.square().minus(hhh).minus(v).minus(v)
	sum.y = r.times(v.minus(sum.x)).minus(hhh.times(p.y))
	sum.z = p.z.times(h)
	return sum, true
}
