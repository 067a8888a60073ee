// The prefix every message carries; see error.h.
#include "hasten/core/error.h"

namespace hasten {

std::string message_prefix(const Origin& origin) {
  if (origin.world_size <= 1) return text('[', origin.room, "] ");
  return text('[', origin.room, "] rank ", origin.rank, '/', origin.world_size, ": ");
}

}  // namespace hasten
