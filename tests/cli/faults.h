// Random faults in runs of `hasten launch`: each run must end or go on as specified, with the right root
// cause, and leave no process. What is random comes from one seed, which every failure prints with the kind.
#pragma once

#include "cli/elastic_faults.h"

namespace hasten::test {

class Faults : public ElasticFaults {
 protected:
  // So many runs of each kind that this machine lets a test have.
  void run_all_faults(int num_each) {
    std::vector<Kind> kinds = local_kinds();
    const auto add = [&](const std::vector<Kind>& more) { kinds.insert(kinds.end(), more.begin(), more.end()); };
    const bool with_machines = geteuid() == 0 && run_command({"/usr/bin/unshare", "-n", "true"}).exit_code == 0;
    if (with_machines) {
      ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
      add(machine_kinds());
    } else {
      std::cout << "without several machines: there are no network namespaces, or this is not root" << std::endl;
    }
    add(elastic_kinds(with_machines));
    run_faults(kinds, num_each);
  }
};

}  // namespace hasten::test
