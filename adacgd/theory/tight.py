"""The tight step and rate of EF21 (any n) and EF14 (n = 1) for strongly convex workers, as plain numbers.

theory.md 3.3; derived here for EF21 with n workers; for one worker its optimality is the literature's. The proof:
docs/theory-tight.md. Letters: every f_i is mu-strongly convex and L-smooth with the same constants mu < L, the
compressor contractive with alpha, e = sqrt(1 - alpha), S = L + mu.
"""

import math


def tight_stepsize(mu: float, L: float, alpha: float) -> float:
    """gamma = (2/S)(1 - e)/(1 + e), the step of the least worst case (theory.md 3.3).

    For EF21 with any contractive C, deterministic or random, any n and any g_i^0, and for EF14 with n = 1. It covers
    g + C(grad - g) alone: LAG, CLAG and AdaCGD may be silent, which it does not allow for.
    alpha = 1 (C the identity) gives gradient descent's 2/(L + mu). Raises ValueError for what the theorem excludes.
    """
    _require_class("tight_stepsize", mu, L)
    e, theta = _root("tight_stepsize", alpha)
    return 2 / (L + mu) * theta / (1 + e)


def tight_rate(mu: float, L: float, alpha: float) -> float:
    """rho of E V^{t+1} <= rho V^t at gamma = `tight_stepsize(mu, L, alpha)`, whatever n (theory.md 3.3).

        rho = e + (1 + e)(L - mu) lam / 4
        lam = (gamma/S) [(1 - e)(L - mu) + (1 + e) sqrt((L - mu)^2 + 16 L mu e/(1 + e)^2)]

    V is `ef21_potential` or, for n = 1, `ef14_potential`; no smaller rho is true for either. It needs every f_i to be
    strongly convex with one mu < L: for unequal constants take the largest L_i and the smallest mu_i.
    alpha -> 1 gives ((L - mu)/(L + mu))^2, the factor of |x - x*|^2 in gradient descent at 2/(L + mu).
    Raises ValueError for what the theorem excludes.
    """
    _require_class("tight_rate", mu, L)
    e, theta = _root("tight_rate", alpha)
    S, gamma = L + mu, tight_stepsize(mu, L, alpha)
    root = math.sqrt((L - mu) ** 2 + 16 * L * mu * e / (1 + e) ** 2)
    lam = gamma / S * (theta * (L - mu) + (1 + e) * root)
    return e + (1 + e) * (L - mu) * lam / 4


def ef21_potential(grad_sq: float, G: float, alpha: float) -> float:
    """V = e |grad f(x)|^2 + (1/n) sum |grad f_i(x) - g_i|^2, for the pair (x^t, g^t) (theory.md 3.3).

    grad_sq: |grad f(x^t)|^2; G: the mean of |grad f_i(x^t) - g_i^t|^2, where g_i^t already knows grad f_i(x^t), as the
    rows of a trace have them. For the pair (x^t, g^{t-1}) the weight would have to be 1/e: with e, one step can grow V.
    Raises ValueError for an alpha outside (0, 1): at alpha = 1 both g = grad f and e = 0, and V says nothing.
    """
    e, _ = _root("ef21_potential", alpha)
    if e == 0:
        raise ValueError(
            "ef21_potential(alpha=1): the identity leaves V = 0 and nothing to bound; use |x - x*|^2, which "
            "tight_rate bounds too."
        )
    return e * grad_sq + G


def ef14_potential(distance_sq: float, error_sq: float, alpha: float) -> float:
    """V = |x - x* - err|^2 + (1/e)|err|^2 of classic error feedback with one worker (theory.md 3.3).

    distance_sq: |x^t - x* - err^t|^2; error_sq: |err^t|^2, where p = err + gamma grad f(x), x^+ = x - C(p),
    err^+ = p - C(p). At alpha = 1 the error is 0 and V = |x - x*|^2. Raises ValueError.
    """
    e, _ = _root("ef14_potential", alpha)
    return distance_sq + (error_sq / e if e > 0 else 0.0)


def tight_iterations_to(eps: float, V0: float, mu: float, L: float, alpha: float) -> int:
    """The least T for which EF21's tight rate guarantees E f(x^T) - f* <= eps, from V^0 = V0 (theory.md 3.3).

    ceil(log(V0/(2 mu e eps)) / -log rho), since f - f* <= |grad f|^2/(2 mu) <= V/(2 mu e); 0 if the start satisfies it.
    Raises ValueError, also for alpha = 1, where V is no measure.
    """
    rho, e = tight_rate(mu, L, alpha), math.sqrt(1 - alpha)
    for name, value, ok in (("eps", eps, 0 < eps < math.inf), ("V0", V0, 0 <= V0 < math.inf), ("alpha", alpha, e > 0)):
        if not ok:
            rule = "below 1" if name == "alpha" else "positive and finite" if name == "eps" else "finite, at least 0"
            raise ValueError(f"tight_iterations_to({name}=...) must be {rule}, got {value}.")
    target = 2 * mu * e * eps
    return 0 if V0 <= target else math.ceil(math.log(V0 / target) / -math.log(rho))


def ef21_floor(mu: float, L: float, alpha: float, stepsize: float) -> float:
    """The factor a round that no analysis of EF21 (any n) or EF14 can go below at this step (derived here, 3.3).

    On f = a x^2/2 in one dimension with C(v) = (1 + e)v a round multiplies (grad f, grad f - g) by a matrix of
    determinant -e and trace 1 - e - gamma a (1 + e). Its largest |eigenvalue| is

        s = (k + sqrt(k^2 + 4 e))/2,   k = max over a in {mu, L} of |1 - e - gamma a (1 + e)|

    and the floor is s^2. k is least at `tight_stepsize`, (1 - e)(L - mu)/(L + mu), where s^2 is `tight_rate`: no step
    and no potential gives a better rate. At other steps too the solver finds no worse than s^2. Raises ValueError.
    """
    _require_class("ef21_floor", mu, L)
    _require_step("ef21_floor", stepsize)
    e, theta = _root("ef21_floor", alpha)
    k = max(abs(theta - stepsize * a * (1 + e)) for a in (mu, L))
    return ((k + math.sqrt(k**2 + 4 * e)) / 2) ** 2


def cgd_factor(mu: float, L: float, alpha: float, stepsize: float) -> float:
    """max{(1 - gamma mu (1 - e))^2, (1 - gamma L (1 + e))^2}: f - f* in a round of x^+ = x - gamma C(grad f(x)), n = 1.

    No factor below it is true: f = mu x^2/2 with C(v) = (1 - e)v and f = L x^2/2 with C(v) = (1 + e)v have it. That it
    is the worst case is not proved here; the solver finds no worse.
    The theorem, 1 - gamma alpha mu for gamma <= 1/L (theory.md 2), is never below it. Raises ValueError.
    """
    _require_class("cgd_factor", mu, L)
    _require_step("cgd_factor", stepsize)
    e, theta = _root("cgd_factor", alpha)
    return max((1 - stepsize * mu * theta) ** 2, (1 - stepsize * L * (1 + e)) ** 2)


def _require_step(owner: str, stepsize: float) -> None:
    if not 0 < stepsize < math.inf:
        raise ValueError(f"{owner}(stepsize=...) must be positive and finite, got {stepsize}.")


def _root(owner: str, alpha: float) -> tuple[float, float]:
    """e = sqrt(1 - alpha) and theta = 1 - e, without cancellation. Raises ValueError."""
    if not 0 < alpha <= 1:
        raise ValueError(f"{owner}(alpha=...) is that of a contractive compressor, in (0, 1]; got {alpha}.")
    e = math.sqrt(1 - alpha)
    return e, alpha / (1 + e)


def _require_class(owner: str, mu: float, L: float) -> None:
    if not 0 < mu < L < math.inf:
        raise ValueError(
            f"{owner} assumes every f_i strongly convex and smooth, 0 < mu < L; got mu = {mu}, L = {L}. Without strong "
            "convexity of each f_i use stepsize(regime='pl') or 'nonconvex'."
        )
