// Must not compile: an argument that cannot travel, and results and parameters that are references. The test looks for
// the remedies in the compiler's words.
#include <mutex>

#include "hasten/rpc/rpc.h"

struct Owned {
  Owned(int, std::mutex*);
  virtual ~Owned();
};
int use_owned(const Owned&);
int& reference_to_value();
void change(int& value);

void serve(hasten::rpc::Functions& functions) {
  functions.add<&use_owned>();
  functions.add<&reference_to_value>();
  functions.add<&change>();
}
