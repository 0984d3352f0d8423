/* mtt_fixture.h: one device for all tests of a program, with nothing left on it after each. */
#ifndef MTT_FIXTURE_H
#define MTT_FIXTURE_H

#include "mtt.h"

/* What mtt_open_device opened. A test may put another here, and must put the first one back. */
extern mt_device *device;

/* For a group of tests: opens mtt_device() with the balance check on; lets it go again. Closing
 * fails as mtt_nothing_left() does, for groups whose tests share what a set-up of theirs made. */
int mtt_open_device(void **state);
int mtt_close_device(void **state);
/* After a test: fails where bytes are still allocated, an error was not cleared, or this thread is
 * still within a scope, under a hook or without gradients. */
int mtt_nothing_left(void **state);
/* A test that must leave nothing, as an entry of the group's table. */
#define mtt_test(name) cmocka_unit_test_teardown(name, mtt_nothing_left)

#endif
