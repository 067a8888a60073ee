// Two turns, with all ranks' outcome after each; see ordered.h.
#include "hasten/process/ordered.h"

#include <exception>
#include <string>
#include <vector>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::process::detail {
namespace {

/// Runs the body if it is this rank's turn, and sends the result to the others. Throws if it failed anywhere.
void take_turn(const Process& process, bool mine, const char* name, const std::function<void()>& body) {
  std::exception_ptr thrown;
  std::vector<std::string> words;  // empty: all is well
  try {
    if (mine) body();
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    words.emplace_back(error.what());
  } catch (...) {
    thrown = std::current_exception();
    words.emplace_back("an exception without words");
  }
  const comm::Purpose purpose("main_process_first");
  const auto all = comm::gather_object(process.group(), words);
  if (thrown) std::rethrow_exception(thrown);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    throw CommError({"state", process.rank(), process.world_size()}, name, name, ": the function threw on rank ", rank,
                    ": ", all[rank].front());
  }
}

}  // namespace

void run_in_order(const Process& process, bool first, const char* name, const std::function<void()>& body) {
  take_turn(process, first, name, body);
  take_turn(process, !first, name, body);
}

}  // namespace hasten::process::detail
