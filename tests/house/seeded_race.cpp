// A data race on purpose: the tsan preset must report it, or its silence on the other tests means nothing.
#include <thread>

int main() {
  int shared = 0;
  std::thread other([&shared] { ++shared; });
  ++shared;
  other.join();
  return 0;
}
