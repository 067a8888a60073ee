// Replaces the Gloo header of this name. libtorch's packages leave it out although ProcessGroupGloo.hpp includes it.
// Nothing of it is needed.
#pragma once
