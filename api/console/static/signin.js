// Takes a link at once. Programs that only look ahead run no scripts, so that they leave it for who was meant.
document.getElementById("take")?.requestSubmit()
