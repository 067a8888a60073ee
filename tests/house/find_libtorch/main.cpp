// Compiles only with libtorch's include folders, runs only if the loader finds its libraries.
#include <torch/torch.h>

int main() {
  return stand_in_cpu() + stand_in_c10();
}
