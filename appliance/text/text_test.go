package text_test
