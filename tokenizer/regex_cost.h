// What a pattern may cost beyond what Oniguruma counts.
//
// Oniguruma counts backtracking, which bounds nearly every pattern. It does not count what a
// lookaround reads. One that reads without end, inside of a repeat, reads the rest of the text once
// per repetition: `(?:a(?=a*+))*` takes quadratic time, and every level of nesting adds a power.
// Nor does it count what an absent operator, `(?~...)`, tries.
#pragma once

#include <string_view>

namespace edgellm::tok {

// Names the part of the pattern whose time has no bound; empty where there is none. Errs on the
// side of caution: with lookarounds beside subexpression calls, which may repeat anything, and in
// extended patterns, whose comments may hide parentheses.
std::string_view unbounded_part(std::string_view pattern);

}  // namespace edgellm::tok
