// Replaces the Gloo header of this name; nothing of it is needed (see common/error.h here).
#pragma once
