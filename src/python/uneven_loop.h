// UnevenLoop: a loop in which ranks have different numbers of batches, which Python opens and closes.
//
// Accelerator::join_uneven_inputs takes the loop as a function. Python's loop is the body of a `with`, so the function
// runs in a thread beside it, and waits there for the body's end. At any time only one of the two threads runs.
#pragma once

#include <future>
#include <string>
#include <thread>

#include "python/trainer.h"

namespace hasten::python {

class UnevenLoop {
 public:
  /// Opens the loop. Both must stay valid. Collective: yes. Blocks: yes. Throws: as Accelerator::join_uneven_inputs.
  UnevenLoop(const Accelerator& accelerator, const DistributedModule& module);
  /// Ends the thread of a loop that was not closed.
  ~UnevenLoop();
  UnevenLoop(const UnevenLoop&) = delete;
  UnevenLoop& operator=(const UnevenLoop&) = delete;

  /// Takes part in the other ranks' batches until all have run out. Python's signal handlers run meanwhile.
  /// With the GIL. Collective: yes. Blocks: until all ranks have run out. Throws: as Accelerator::join_uneven_inputs;
  /// the exceptions of a signal handler.
  void close();
  /// Ends a loop that an exception has left. `others_know`: it is of a peer's failure, which no rank needs to be told.
  /// With the GIL. Collective: yes. Blocks: yes.
  void leave(const std::string& words, bool others_know) noexcept;

 private:
  void wait_for_end();

  const Accelerator& accelerator_;
  std::promise<void> begun_, body_, ended_;
  bool has_begun_ = false, is_closed_ = false;
  std::future<void> end_ = ended_.get_future();
  std::thread thread_;
};

}  // namespace hasten::python
