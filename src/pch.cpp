// Empty on purpose. It carries the precompiled header, and replaces the sources of a room that has none; see
// cmake/HastenRoom.cmake.
