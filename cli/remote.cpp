// `hasten remote`: what `hasten launch` starts of itself on other machines. Not for users, and not in the
// help.
#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/launch/remote/remote_run.h"

namespace hasten::cli {

int remote(const std::vector<std::string>& words) {
  if (words.empty() || words.size() > 2)
    throw UsageError({"remote"}, "hasten launch starts this command by itself; see docs/clusters/hostfile.md.");
  const auto word = [&](size_t i) { return i < words.size() ? words[i] : std::string(); };
  return launcher::serve_remote(word(0), word(1), launch_here);
}

}  // namespace hasten::cli
