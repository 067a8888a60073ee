// Ends of plurals; see count_text.h.
#include "hasten/core/count_text.h"

namespace hasten {

std::string plural_of(std::string_view noun) {
  const auto ends_in_a_sound_of_s = [noun] {
    if (noun.ends_with("epoch")) return false;  // as in Greek
    for (const std::string_view end : {"s", "x", "ch", "sh"}) {
      if (noun.ends_with(end)) return true;
    }
    return false;
  };
  if (ends_in_a_sound_of_s()) return text(noun, "es");
  const bool ends_in_y = noun.size() > 1 && noun.back() == 'y';
  if (ends_in_y && std::string_view("aeiou").find(noun[noun.size() - 2]) == std::string_view::npos)
    return text(noun.substr(0, noun.size() - 1), "ies");
  return text(noun, 's');
}

}  // namespace hasten
